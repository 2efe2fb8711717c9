// Copies several memory regions in one launch. copies.ptx is the output of nvcc -ptx
// -arch=compute_75 for this file, checked in so that building exporter does not require nvcc. The
// target check_ptx compares the two; update_ptx writes copies.ptx again.

struct Copy {
  char* to;
  const char* from;
  unsigned long long bytes;
};

struct Copies {
  Copy each[32];
};

// Launched with a grid of (any number, number of copies) blocks, each one-dimensional.
extern "C" __global__ void exporter_copies(const Copies copies) {
  const Copy copy = copies.each[blockIdx.y];
  const unsigned long long first = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned long long step = gridDim.x * blockDim.x;
  const bool aligned = ((reinterpret_cast<unsigned long long>(copy.to) |
                         reinterpret_cast<unsigned long long>(copy.from)) %
                        16) == 0;
  const unsigned long long wide = aligned ? copy.bytes / 16 : 0;
  for (unsigned long long i = first; i < wide; i += step) {
    reinterpret_cast<uint4*>(copy.to)[i] = reinterpret_cast<const uint4*>(copy.from)[i];
  }
#pragma unroll 1
  for (unsigned long long i = wide * 16 + first; i < copy.bytes; i += step) {
    copy.to[i] = copy.from[i];
  }
}
