#pragma once

#include <string_view>

namespace exporter {

/// What torch's reader of pickles takes on trust: throws std::runtime_error for lengths and memo
/// numbers that it would allocate memory by and that the pickle is too short for, for values that
/// lie so deep in one another that recursion ends the process, and for ways to rebuild a tensor
/// other than the usual, which read data by indices of their own.
/// The form is that of Python's pickletools, protocols 2 to 4, as far as torch writes it.
void require_sound_pickle(std::string_view pickle);

}  // namespace exporter
