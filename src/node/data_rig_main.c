/* data-rig AGENT DATA_DIR RUN_DIR [SPOOL_BYTES [MAX_PROCESSES [KEY=VALUE ...]]]: see data_rig.h. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/span.h"
#include "node/data_rig.h"

static unsigned int number(int argc, char **argv, int index)
{
    uint64_t value = 0;

    if (index < argc && span_parse_u64(span_of_str(argv[index]), 1U << 30, &value) < 0) {
        return 0;
    }
    return (unsigned int)value;
}

int main(int argc, char **argv)
{
    struct data_rig_options options = {0};

    if (argc < 4) {
        (void)fprintf(stderr, "usage: data-rig AGENT|- DATA_DIR RUN_DIR [SPOOL_BYTES [MAX]]\n");
        return 2;
    }
    log_init("data-rig", LOG_LEVEL_INFO);
    options.agent_program = strcmp(argv[1], "-") == 0 ? NULL : argv[1];
    options.data_dir = argv[2];
    options.run_dir = argv[3];
    options.spool_bytes = number(argc, argv, 4);
    options.max_processes = number(argc, argv, 5);
    options.settings = argc > 6 ? &argv[6] : NULL;
    return data_rig_run(&options) == 0 ? 0 : 1;
}
