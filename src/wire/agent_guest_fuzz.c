/* What the agent reads: a host's bytes, with whatever an interrupted connection left between. */
#include "wire/agent_roundtrip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    agent_fuzz_stream(span_make(data, size), AGENT_HELLO, true);
    return 0;
}
