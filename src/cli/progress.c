#include "cli/progress.h"

#include <inttypes.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/text.h"

#define SHOW_EVERY_MS 100
#define SHOW_AFTER_MS 300 /* what is quick needs no line */
#define BAR_WIDTH     20U

void progress_init(struct progress *p, const struct cli *cli, const char *what, uint64_t total)
{
    _cleanup_buf_ struct buf safe = buf_make(0);

    *p = (struct progress){
        .cli = cli, .total_bytes = total, .began_ms = clock_monotonic_ms(), .shown_ms = 0};
    text_put_safe(&safe, span_of_str(what));
    (void)snprintf(p->what, sizeof(p->what), "%.60s", buf_str(&safe));
}

static void put_bar(struct buf *line, uint64_t bytes, uint64_t total)
{
    uint64_t done = bytes < total ? bytes : total;
    unsigned int filled = (unsigned int)((double)done / (double)total * BAR_WIDTH);

    buf_put_str(line, " [");
    for (unsigned int i = 0; i < BAR_WIDTH; i++) {
        buf_put_str(line, i < filled ? "#" : ".");
    }
    buf_printf(line, "] %3u %%", (unsigned int)((double)done / (double)total * 100));
}

static void put_rate(struct buf *line, uint64_t bytes, int64_t spent_ms)
{
    char text[TEXT_SHORT_SIZE];

    if (spent_ms > 0) {
        text_format_bytes((uint64_t)((double)bytes * 1000 / (double)spent_ms), text);
        buf_printf(line, ", %s/s", text);
    }
}

static void put_amount(struct buf *line, uint64_t bytes, uint64_t files)
{
    char text[TEXT_SHORT_SIZE];

    text_format_bytes(bytes, text);
    if (files > 0) {
        buf_printf(line, "%" PRIu64 " %s, ", files, files == 1 ? "file" : "files");
    }
    buf_put_str(line, text);
}

void progress_show(struct progress *p, uint64_t bytes, uint64_t files)
{
    _cleanup_buf_ struct buf line = buf_make(0);
    int64_t now_ms = clock_monotonic_ms();

    if (!p->cli->err_is_terminal || now_ms - p->began_ms < SHOW_AFTER_MS ||
        now_ms - p->shown_ms < SHOW_EVERY_MS) {
        return;
    }
    p->shown_ms = now_ms;
    buf_printf(&line, "\r\033[K%s ", p->what);
    put_amount(&line, bytes, files);
    put_rate(&line, bytes, now_ms - p->began_ms);
    if (p->total_bytes > 0) {
        put_bar(&line, bytes, p->total_bytes);
    }
    (void)fd_write_all(STDERR_FILENO, buf_span(&line));
}

void progress_clear(struct progress *p)
{
    if (p->shown_ms != 0) {
        (void)fd_write_all(STDERR_FILENO, span_of_str("\r\033[K"));
    }
    p->shown_ms = 0;
}

void progress_done(struct progress *p, uint64_t bytes, uint64_t files)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    int64_t spent_ms = clock_monotonic_ms() - p->began_ms;

    progress_clear(p);
    put_amount(&text, bytes, files);
    cli_progress(p->cli, "copied %s in %.1f s", buf_str(&text), (double)spent_ms / 1000.0);
}
