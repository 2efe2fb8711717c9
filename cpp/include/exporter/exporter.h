#pragma once

// Includes every public header of the library.

#include <exporter/artifact.h>
#include <exporter/contract.h>
#include <exporter/error.h>
#include <exporter/golden.h>
#include <exporter/operators.h>
#include <exporter/parity.h>
#include <exporter/profile.h>
#include <exporter/stream.h>
#include <exporter/threads.h>
#include <exporter/unpacked.h>
#include <exporter/version.h>
