// Runs the allocator that TensorFlow ships on requests from the standard input and
// prints what it did: the oracle of test_bfc_oracle.py. No memory is touched; the
// regions lie one after the other at made-up addresses.
//
// First line: limit growth
// Then, per line: "a SIZE" (prints the address, 0 for a failure) or "f ADDRESS".
// At the end: bytes in use, peak, pool.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <unistd.h>

#include "xla/tsl/framework/allocator.h"
#include "xla/tsl/framework/bfc_allocator.h"

class Device : public tsl::SubAllocator {
 public:
  explicit Device(size_t bytes) : SubAllocator({}, {}), bytes_(bytes) {}
  void* Alloc(size_t, size_t size, size_t* received) override {
    if (used_ + size > bytes_) return nullptr;
    char* address = reinterpret_cast<char*>(next_);
    used_ += size;
    next_ += size + 256;
    *received = size;
    return address;
  }
  void Free(void*, size_t size) override { used_ -= size; }
  bool SupportsCoalescing() const override { return false; }

 private:
  size_t bytes_, used_ = 0, next_ = 256;
};

int main() {
  unsigned long long limit, number;
  int growth;
  if (scanf("%llu %d", &limit, &growth) != 2) return 2;
  tsl::BFCAllocator::Options options;
  options.allow_growth = growth;
  options.garbage_collection = true;
  options.allow_retry_on_failure = false;
  auto* allocator = new tsl::BFCAllocator(std::make_unique<Device>(limit), limit,
                                          "oracle", options);
  tsl::AllocationAttributes attributes;
  attributes.retry_on_failure = false;
  char operation;
  while (scanf(" %c %llu", &operation, &number) == 2) {
    if (operation == 'a') {
      void* address = allocator->AllocateRaw(256, number, attributes);
      printf("%llu\n", reinterpret_cast<unsigned long long>(address));
    } else {
      allocator->DeallocateRaw(reinterpret_cast<void*>(number));
    }
  }
  auto stats = allocator->GetStats();
  printf("%lld %lld %lld\n", static_cast<long long>(stats->bytes_in_use),
         static_cast<long long>(stats->peak_bytes_in_use),
         static_cast<long long>(stats->pool_bytes.value_or(-1)));
  fflush(stdout);
  _exit(0);  // no destructors: blocks may still be in use
}
