"""A signature over `provenance.json`: by a key of your own, or by an identity that sigstore vouches for.

By a key it is a DSSE envelope (https://github.com/secure-systems-lab/dsse) at `provenance.dsse.json`, by sigstore a
bundle of its own form at `provenance.sigstore.json`. Both hold the statement itself.
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

PAYLOAD = "application/vnd.in-toto+json"
OFFLINE = "sign with --key where there is no network"


@dataclass(frozen=True)
class Trust:
    """Whose signature counts: that of the key to this public key, or that of this identity, which the issuer names."""

    public_key: Path | None = None
    identity: str = ""
    issuer: str = ""


ANYBODY = Trust()  # a signature that is there has to be one over this provenance, whoever made it


def with_key(payload: bytes, key: Path, ask: Callable[[], str]) -> str:
    """A DSSE envelope by a private key in a PEM file: Ed25519, ECDSA or RSA. `ask` gives the password of a locked one.

    UsageError for what is no such key.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    envelope = Envelope(payload, PAYLOAD, {})
    with _reading(key, "private key", "make one with `openssl genpkey -algorithm ed25519 -out key.pem`"):
        envelope.sign(CryptoSigner(_private_key(key.read_bytes(), ask)))
    return _text(envelope)


def _private_key(pem: bytes, ask: Callable[[], str]) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem, password=None)
    except TypeError:  # it is encrypted
        return load_pem_private_key(pem, password=ask().encode())


@contextmanager
def _reading(path: Path, what: str, remedy: str) -> Iterator[None]:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path} is no {what} that can be used: {error}", remedy) from error


def _text(envelope: Envelope) -> str:
    return json.dumps(envelope.to_dict(), indent=2) + "\n"


def require_key(payload: bytes, text: bytes, trust: Trust) -> None:
    """AlteredError when an envelope is not over this payload, or not by the key that is trusted, where one is."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    try:
        envelope = Envelope.from_dict(json.loads(text))
        whole = _text(envelope).encode() == text  # else it was touched where the signature does not reach
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AlteredError(f"it is no DSSE envelope: {error}") from error
    if not whole:
        raise AlteredError("it is not as it was written")
    if (envelope.payload, envelope.payload_type) != (payload, PAYLOAD):
        raise AlteredError("it signs another provenance.json")
    if trust.public_key is None:
        return
    with _reading(trust.public_key, "public key", "make it with `openssl pkey -in key.pem -pubout -out pub.pem`"):
        key = SSlibKey.from_crypto(_public_key(trust.public_key.read_bytes()))
    try:
        envelope.verify([key], threshold=1)
    except VerificationError as error:
        raise AlteredError(f"it was not signed by the key to {trust.public_key}") from error


def _public_key(pem: bytes) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return load_pem_public_key(pem)


def keyless(payload: bytes) -> str:
    """A sigstore bundle by the identity of this machine's workload, or of whoever logs in with a browser.

    MissingDependency without sigstore, ExporterError when it, or who vouches for you, cannot be reached.
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
    """AlteredError when a sigstore bundle is not over this payload by the identity that is trusted, where one is.

    MissingDependency without sigstore, ExporterError when its keys cannot be fetched.
    """
    try:
        signed = base64.b64decode(json.loads(text)["dsseEnvelope"]["payload"], validate=True)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AlteredError(f"it is no sigstore bundle: {error}") from error
    if signed != payload:
        raise AlteredError("it signs another provenance.json")
    if not trust.identity:
        return
    with _sigstore("try again where there is a network"):
        from sigstore import errors, models, verify

        verifier = verify.Verifier.production()
        try:
            found = models.Bundle.from_json(text)
            wanted = verify.policy.Identity(identity=trust.identity, issuer=trust.issuer)
            kind, signed = verifier.verify_dsse(found, wanted)
        except (errors.VerificationError, models.InvalidBundle, ValueError) as error:
            raise AlteredError(f"it was not signed by {trust.identity}: {error}") from error
    if (kind, signed) != (PAYLOAD, payload):
        raise AlteredError("it signs another provenance.json")


@contextmanager
def _sigstore(remedy: str) -> Iterator[None]:
    try:
        from sigstore import errors
    except ImportError as error:
        raise MissingDependency(
            "sigstore is not installed",
            "pip install 'exporter[sigstore]'; or use a key of your own: --key, --public-key",
        ) from error
    try:
        yield
    except errors.Error as error:
        raise ExporterError(f"sigstore: {error or type(error).__name__}", remedy) from error
