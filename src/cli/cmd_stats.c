/* `space stats`: what a sandbox uses. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/api.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/rest.h"
#include "cli/table.h"
#include "cli/text.h"

#define MIB 1048576.0

static void put_use(struct table *table, const json_t *sample, const char *used, const char *total)
{
    char a[TEXT_SHORT_SIZE];
    char b[TEXT_SHORT_SIZE];

    text_format_mib((uint64_t)((double)api_number(sample, used) / MIB + 0.5), a);
    text_format_mib((uint64_t)((double)api_number(sample, total) / MIB + 0.5), b);
    table_printf(table, "%s of %s", a, b);
}

static int print_samples(const struct cli *cli, const json_t *items, bool all)
{
    static const char *const heads[] = {"TIME", "CPU", "CPU TIME", "MEMORY", "DISK", "PROCESSES"};
    _cleanup_table_ struct table *table = table_new(heads, sizeof(heads) / sizeof(heads[0]));
    size_t count = json_array_size(items);

    if (table == NULL) {
        return EXIT_STATUS_REFUSED;
    }
    for (size_t i = all || count == 0 ? 0 : count - 1; i < count; i++) {
        const json_t *sample = json_array_get(items, i);

        table_put(table, api_text(sample, "at"));
        table_printf(table, "%.1f %%", json_number_value(json_object_get(sample, "cpu_percent")));
        table_printf(table, "%.1f s", json_number_value(json_object_get(sample, "cpu_seconds")));
        put_use(table, sample, "memory_used_bytes", "memory_total_bytes");
        put_use(table, sample, "disk_used_bytes", "disk_total_bytes");
        table_printf(table, "%" PRId64, api_number(sample, "processes"));
    }
    return cli_print_table(cli, table);
}

static int ask(struct cli *cli, double period_seconds, bool all, struct error *err)
{
    _cleanup_buf_ struct buf path = buf_make(0);
    _cleanup_json_ json_t *answer = NULL;
    char start[CLOCK_TEXT_SIZE];
    char id[ID_SIZE];
    int r;

    if (cli_connect(cli, err) < 0 || api_find_sandbox(cli, args_word(cli->args, 0), id, err) < 0) {
        return -EIO;
    }
    clock_format(clock_real_ms() - (int64_t)(period_seconds * 1000), start);
    buf_printf(&path, "/v1/sandboxes/%s/metrics", id);
    if (all) {
        rest_put_query(&path, "start", start);
    }
    r = api_get(cli, buf_str(&path), &answer, err);
    if (r < 0 || cli->json) {
        return r < 0 ? r : cli_print_json(answer);
    }
    if (json_array_size(json_object_get(answer, "items")) == 0) {
        cli_note("space: no sample yet; one comes every few seconds while the sandbox runs");
        return EXIT_STATUS_DONE;
    }
    return print_samples(cli, json_object_get(answer, "items"), all);
}

int cmd_stats(struct cli *cli, const struct args *args)
{
    const char *period = args_get(args, "last");
    struct error err = {0};
    double seconds = 0;
    int r;

    if (period != NULL && text_parse_seconds(period, "last", &seconds, &err) < 0) {
        return cli_fail_usage(cli, &err);
    }
    r = ask(cli, seconds, period != NULL, &err);
    return r < 0 ? cli_fail(cli, &err) : r;
}
