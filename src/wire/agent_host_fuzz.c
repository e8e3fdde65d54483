/* What the host reads: a hostile guest's bytes after (or without) a WELCOME. */
#include "wire/agent_roundtrip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    agent_fuzz_stream(span_make(data, size), AGENT_WELCOME, false);
    return 0;
}
