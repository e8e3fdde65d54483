#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/span.h"

static int64_t clock_read_ns(clockid_t id)
{
    struct timespec ts;

    (void)clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t clock_monotonic_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC);
}

int64_t clock_monotonic_ms(void)
{
    return clock_monotonic_ns() / 1000000;
}

int64_t clock_real_ns(void)
{
    return clock_read_ns(CLOCK_REALTIME);
}

int64_t clock_real_ms(void)
{
    return clock_real_ns() / 1000000;
}

int clock_of_process_ns(pid_t pid, uint64_t *ret_ns)
{
    clockid_t clock;
    struct timespec time;
    int r = clock_getcpuclockid(pid, &clock);

    if (r != 0) {
        return -r;
    }
    if (clock_gettime(clock, &time) < 0) {
        return -errno;
    }
    *ret_ns = (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
    return 0;
}

void clock_format(int64_t real_ms, char out[CLOCK_TEXT_SIZE])
{
    time_t seconds = (time_t)(real_ms / 1000);
    int ms = (int)(real_ms % 1000);
    struct tm tm;

    if (ms < 0) {
        ms += 1000;
        seconds--;
    }
    if (gmtime_r(&seconds, &tm) == NULL || tm.tm_year > 8099) {
        (void)snprintf(out, CLOCK_TEXT_SIZE, "9999-12-31T23:59:59.999Z");
        return;
    }
    (void)snprintf(out, CLOCK_TEXT_SIZE, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ",
                   (tm.tm_year + 1900) % 10000, (tm.tm_mon + 1) % 100, tm.tm_mday % 100,
                   tm.tm_hour % 100, tm.tm_min % 100, tm.tm_sec % 100, ms % 1000);
}

/* Takes `digits` decimal digits off the front of s. */
static int take_number(struct span *s, size_t digits, int min, int max)
{
    uint64_t value;

    if (s->n < digits || span_parse_u64(span_head(*s, digits), (uint64_t)max, &value) < 0 ||
        (int)value < min) {
        return -EBADMSG;
    }
    *s = span_skip(*s, digits);
    return (int)value;
}

static int take_char(struct span *s, char upper, char lower)
{
    if (s->n == 0 || (s->p[0] != (uint8_t)upper && s->p[0] != (uint8_t)lower)) {
        return -EBADMSG;
    }
    *s = span_skip(*s, 1);
    return 0;
}

static int take_fraction_ms(struct span *s, int *ret_ms)
{
    int scale = 100;
    int ms = 0;
    size_t digits = 0;

    if (take_char(s, '.', '.') < 0) {
        *ret_ms = 0;
        return 0;
    }
    while (s->n > 0 && s->p[0] >= '0' && s->p[0] <= '9') {
        ms += (s->p[0] - '0') * scale;
        scale /= 10;
        digits++;
        *s = span_skip(*s, 1);
    }
    *ret_ms = ms;
    return digits > 0 && digits <= 9 ? 0 : -EBADMSG;
}

static int take_offset_minutes(struct span *s, int *ret_minutes)
{
    int sign;
    int hours;
    int minutes;

    if (take_char(s, 'Z', 'z') == 0) {
        *ret_minutes = 0;
        return 0;
    }
    if (s->n == 0 || (s->p[0] != '+' && s->p[0] != '-')) {
        return -EBADMSG;
    }
    sign = s->p[0] == '+' ? 1 : -1;
    *s = span_skip(*s, 1);
    hours = take_number(s, 2, 0, 23);
    if (hours < 0 || take_char(s, ':', ':') < 0) {
        return -EBADMSG;
    }
    minutes = take_number(s, 2, 0, 59);
    if (minutes < 0) {
        return -EBADMSG;
    }
    *ret_minutes = sign * (hours * 60 + minutes);
    return 0;
}

/* Whether the month has that day: timegm would silently move on to the next one. */
static bool is_date(const struct tm *tm)
{
    struct tm date = {.tm_year = tm->tm_year, .tm_mon = tm->tm_mon, .tm_mday = tm->tm_mday};

    (void)timegm(&date);
    return date.tm_mday == tm->tm_mday;
}

int clock_parse(const char *text, int64_t *ret_real_ms)
{
    struct span s = span_of_str(text);
    struct tm tm = {0};
    int ms;
    int offset_minutes;

    tm.tm_year = take_number(&s, 4, 1970, 9999) - 1900;
    if (tm.tm_year < 0 || take_char(&s, '-', '-') < 0) {
        return -EBADMSG;
    }
    tm.tm_mon = take_number(&s, 2, 1, 12) - 1;
    if (tm.tm_mon < 0 || take_char(&s, '-', '-') < 0) {
        return -EBADMSG;
    }
    tm.tm_mday = take_number(&s, 2, 1, 31);
    if (tm.tm_mday < 0 || take_char(&s, 'T', 't') < 0) {
        return -EBADMSG;
    }
    tm.tm_hour = take_number(&s, 2, 0, 23);
    if (tm.tm_hour < 0 || take_char(&s, ':', ':') < 0) {
        return -EBADMSG;
    }
    tm.tm_min = take_number(&s, 2, 0, 59);
    if (tm.tm_min < 0 || take_char(&s, ':', ':') < 0) {
        return -EBADMSG;
    }
    tm.tm_sec = take_number(&s, 2, 0, 60);
    if (tm.tm_sec < 0 || take_fraction_ms(&s, &ms) < 0 ||
        take_offset_minutes(&s, &offset_minutes) < 0 || s.n != 0 || !is_date(&tm)) {
        return -EBADMSG;
    }
    *ret_real_ms = ((int64_t)timegm(&tm) - (int64_t)offset_minutes * 60) * 1000 + ms;
    return 0;
}
