#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"

#define LOG_LINE_SIZE 2048

struct log_state {
    char program[32];
    enum log_level level;
};

/* NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables) set once in main */
static struct log_state log_state = {"space", LOG_LEVEL_INFO};

static const char *const log_level_names[] = {
    [LOG_LEVEL_ERROR] = "error",
    [LOG_LEVEL_WARNING] = "warning",
    [LOG_LEVEL_INFO] = "info",
    [LOG_LEVEL_DEBUG] = "debug",
};

void log_init(const char *program, enum log_level level)
{
    (void)snprintf(log_state.program, sizeof(log_state.program), "%s", program);
    log_state.level = level;
}

void log_set_level(enum log_level level)
{
    log_state.level = level;
}

int log_level_parse(const char *name, enum log_level *ret_level)
{
    for (size_t i = 0; i < sizeof(log_level_names) / sizeof(log_level_names[0]); i++) {
        if (strcmp(name, log_level_names[i]) == 0) {
            *ret_level = (enum log_level)i;
            return 0;
        }
    }
    return -EINVAL;
}

const char *log_quote(const char *text, char out[LOG_TEXT_SIZE])
{
    size_t n = 0;

    out[n++] = '"';
    for (const char *p = text; *p != '\0' && n < LOG_TEXT_SIZE - 8; p++) {
        unsigned char c = (unsigned char)*p;

        if (c == '"' || c == '\\') {
            out[n++] = '\\';
            out[n++] = (char)c;
        } else if (c < 0x20 || c >= 0x7f) {
            n += (size_t)snprintf(&out[n], 5, "\\x%02x", (unsigned int)c);
        } else {
            out[n++] = (char)c;
        }
    }
    out[n++] = '"';
    out[n] = '\0';
    return out;
}

void log_event(enum log_level level, const char *event, const char *format, ...)
{
    char line[LOG_LINE_SIZE];
    char when[CLOCK_TEXT_SIZE];
    va_list args;
    size_t n;
    int r;

    if (level > log_state.level) {
        return;
    }
    clock_format(clock_real_ms(), when);
    n = (size_t)snprintf(line, sizeof(line), "%s %s %s event=\"%.100s\" ", when,
                         log_level_names[level], log_state.program, event);
    va_start(args, format);
    r = vsnprintf(&line[n], sizeof(line) - n - 1, format, args);
    va_end(args);
    if (r > 0) {
        n += (size_t)r < sizeof(line) - n - 2 ? (size_t)r : sizeof(line) - n - 2;
    }
    line[n++] = '\n';
    if (fd_write_all(STDERR_FILENO, span_make(line, n)) < 0) {
        return; /* there is nowhere left to say it */
    }
}
