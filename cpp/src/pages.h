#pragma once

namespace exporter {

/// Moves the large private memory of this process, weights above all, to huge pages: far fewer
/// addresses to translate. Linux 6.1 or later does so at once, an earlier one in its own time, and
/// a system that is set to give none goes on as it is.
void use_huge_pages();

}  // namespace exporter
