#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace exporter {

File::File(const std::filesystem::path& path)
    : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // a pipe cannot block
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category());
  struct stat status{};
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    throw std::runtime_error("not a file");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

File::~File() { close(descriptor_); }

void File::read(void* data, std::size_t size, std::uint64_t offset) const {
  auto* to = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t count = pread(descriptor_, to, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category());
    if (count == 0) throw std::runtime_error("it is truncated");
    to += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::uint64_t>(count);
  }
}

}  // namespace exporter
