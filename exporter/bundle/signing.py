"""Sign `provenance.json` with a private key or with a sigstore identity, and verify signatures.

The signature with a key is a DSSE envelope (https://github.com/secure-systems-lab/dsse) in `provenance.dsse.json`; that
of sigstore is a sigstore bundle in `provenance.sigstore.json`. Both contain the statement itself.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core.errors import AlteredError, ExporterError, MissingDependency, UsageError

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope

RSA_BITS = 2048  # shorter keys can be broken
PAYLOAD = "application/vnd.in-toto+json"
OFFLINE = "without a network, sign with --key"
STRANGER = "give the key or identity of its signer if you trust that, or get a copy that is signed by whom you trust"


@dataclass(frozen=True)
class Trust:
    """The accepted signer: the owner of this public key, or this identity as certified by the issuer."""

    public_key: Path | None = None
    identity: str = ""
    issuer: str = ""


ANYBODY = Trust()  # a signature, if there is one, must be for this provenance, but may be from anybody


def with_key(payload: bytes, key: Path, ask: Callable[[], str]) -> str:
    """Sign with a private key in a PEM file (Ed25519, ECDSA or RSA) and return a DSSE envelope.

    `ask` returns the password of an encrypted key. Raises UsageError if the key cannot be used.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    envelope = Envelope(payload, PAYLOAD, {})
    with _reading(key, "private key", "create one with `openssl genpkey -algorithm ed25519 -out key.pem`"):
        envelope.sign(CryptoSigner(_private_key(key.read_bytes(), ask)))
    return _text(envelope)


def _private_key(pem: bytes, ask: Callable[[], str]) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError:  # it is encrypted
        password = ask().encode()
        try:
            key = load_pem_private_key(pem, password=password)
        except ValueError as error:
            raise UsageError(f"the private key cannot be decrypted: {error}", "give its password") from error
    if not isinstance(key, Ed25519PrivateKey | EllipticCurvePrivateKey | RSAPrivateKey):
        raise ValueError("it is neither Ed25519, ECDSA nor RSA")
    if isinstance(key, RSAPrivateKey) and key.key_size < RSA_BITS:
        raise ValueError(f"its {key.key_size} bits are too few for RSA, which needs {RSA_BITS}")
    return key


@contextmanager
def _reading(path: Path, what: str, remedy: str) -> Iterator[None]:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path} is not a usable {what}: {error}", remedy) from error


def _text(envelope: Envelope) -> str:
    return json.dumps(envelope.to_dict(), indent=2) + "\n"


def require_key(payload: bytes, text: bytes, trust: Trust) -> None:
    """Verify a DSSE envelope. Raises AlteredError if it signs another payload or is not signed by the trusted key."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    try:
        envelope = Envelope.from_dict(json.loads(text))
        whole = _text(envelope).encode() == text  # else a part was altered that the signature does not cover
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AlteredError(f"it is not a DSSE envelope: {error}") from error
    if not whole:
        raise AlteredError("it was altered outside the signed payload")
    if (envelope.payload, envelope.payload_type) != (payload, PAYLOAD):
        raise AlteredError("it signs another provenance.json")
    if trust.public_key is None:
        return
    with _reading(trust.public_key, "public key", "create it with `openssl pkey -in key.pem -pubout -out pub.pem`"):
        key = SSlibKey.from_crypto(_public_key(trust.public_key.read_bytes()))
    try:
        envelope.verify([key], threshold=1)
    except VerificationError as error:
        raise AlteredError(f"it was not signed by the key that belongs to {trust.public_key}", STRANGER) from error


def _public_key(pem: bytes) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return load_pem_public_key(pem)


def keyless(payload: bytes) -> str:
    """Sign with sigstore, by the identity of this machine's workload or of a login in the browser.

    Returns a sigstore bundle. Raises MissingDependency if sigstore is not installed, and ExporterError if sigstore or
    the identity provider cannot be reached.
    """
    with _sigstore(OFFLINE):
        from sigstore import dsse, models, oidc, sign

        config = models.ClientTrustConfig.production()
        token = oidc.detect_credential()
        issuer = None if token else oidc.Issuer(config.signing_config.get_oidc_url())
        identity = issuer.identity_token() if issuer else oidc.IdentityToken(str(token))
        with sign.SigningContext.from_trust_config(config).signer(identity) as signer:
            return signer.sign_dsse(dsse.Statement(payload)).to_json() + "\n"


def require_identity(payload: bytes, text: bytes, trust: Trust) -> None:
    """Verify a sigstore bundle. Raises AlteredError if it signs another payload or is not by the trusted identity.

    Raises MissingDependency if sigstore is not installed, and ExporterError if its keys cannot be fetched.
    """
    try:
        signed = base64.b64decode(json.loads(text)["dsseEnvelope"]["payload"], validate=True)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AlteredError(f"it is not a sigstore bundle: {error}") from error
    if signed != payload:
        raise AlteredError("it signs another provenance.json")
    if not trust.identity:
        return
    with _sigstore("try again with a network connection"):
        from sigstore import errors, models, verify

        verifier = verify.Verifier.production()
        try:
            found = models.Bundle.from_json(text)
            wanted = verify.policy.Identity(identity=trust.identity, issuer=trust.issuer)
            kind, signed = verifier.verify_dsse(found, wanted)
        except (errors.VerificationError, models.InvalidBundle, ValueError) as error:
            raise AlteredError(f"it was not signed by {trust.identity}: {error}", STRANGER) from error
    if (kind, signed) != (PAYLOAD, payload):
        raise AlteredError("it signs another provenance.json")


@contextmanager
def _sigstore(remedy: str) -> Iterator[None]:
    try:
        from sigstore import errors
    except ImportError as error:
        raise MissingDependency(
            "sigstore is not installed",
            "pip install 'exporter[sigstore]', or use your own key: --key, --public-key",
        ) from error
    try:
        yield
    except errors.Error as error:
        raise ExporterError(f"sigstore: {error or type(error).__name__}", remedy) from error
