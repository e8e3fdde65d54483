/* The files of a spool: descriptors, order log, holes, recovery. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "node/spool_private.h"

#define SESSIONS_DIR       "sessions"
#define RECOVER_READ_BYTES 65536U

static const char *const file_suffix[SPOOL_FILES] = {"out", "err", "order"};

static void file_name(const struct spool *spool, unsigned int index, char out[64])
{
    (void)snprintf(out, 64, SESSIONS_DIR "/%s.%s", spool->session_id, file_suffix[index]);
}

void spool_store_init(struct spool_store *store)
{
    list_init(&store->open);
    store->open_count = 0;
    store->open_max = SPOOL_OPEN_MAX;
    store->memory_bytes = 0;
}

void spool_close_files(struct spool *spool)
{
    for (unsigned int i = 0; i < SPOOL_FILES; i++) {
        if (spool->fds[i] >= 0) {
            (void)close(TAKE_FD(spool->fds[i]));
        }
    }
    if (!list_is_empty(&spool->lru)) {
        list_remove(&spool->lru);
        spool->store->open_count--;
    }
}

/* Puts it at the front of the open spools and closes the one that was not used for longest. */
static void mark_used(struct spool *spool)
{
    struct spool_store *store = spool->store;

    if (list_is_empty(&spool->lru)) {
        store->open_count++;
    } else {
        list_remove(&spool->lru);
    }
    list_append(store->open.next, &spool->lru);
    if (store->open_count > store->open_max) {
        struct spool *oldest = list_entry(store->open.prev, struct spool, lru);

        if (oldest != spool) {
            spool_close_files(oldest);
        }
    }
}

static int open_file(struct spool *spool, unsigned int index, bool create)
{
    char name[64];
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
    int fd;

    file_name(spool, index, name);
    fd = openat(spool->dir_fd, name, flags, 0600);
    if (fd < 0 && errno == ENOENT && create) {
        if (mkdirat(spool->dir_fd, SESSIONS_DIR, 0700) < 0 && errno != EEXIST) {
            return -errno;
        }
        fd = openat(spool->dir_fd, name, flags, 0600);
    }
    return fd < 0 ? -errno : fd;
}

int spool_open_file(struct spool *spool, unsigned int index, bool create)
{
    if (spool->detached) {
        return -ESTALE;
    }
    if (spool->fds[index] < 0) {
        int fd = open_file(spool, index, create);

        if (fd < 0) {
            return fd;
        }
        spool->fds[index] = fd;
        spool->exists[index] = true;
    }
    mark_used(spool);
    return 0;
}

int spool_write_head(struct spool *spool)
{
    struct order_head head = {
        spool->start, spool->mark_first, {spool->head_end[0], spool->head_end[1]}};
    uint8_t bytes[ORDER_HEAD_BYTES];
    int r = spool_open_file(spool, SPOOL_ORDER, true);

    if (r < 0) {
        return r;
    }
    order_head_format(&head, bytes);
    return fd_pwrite_all(spool->fds[SPOOL_ORDER], span_make(bytes, sizeof(bytes)), 0);
}

static off_t mark_offset(uint64_t index)
{
    return (off_t)(ORDER_HEAD_BYTES + index * ORDER_RECORD_BYTES);
}

int spool_write_mark(struct spool *spool, uint64_t index, const struct order_mark *mark)
{
    uint8_t bytes[ORDER_RECORD_BYTES];
    int r = spool_open_file(spool, SPOOL_ORDER, true);

    if (r < 0) {
        return r;
    }
    order_mark_format(mark, bytes);
    return fd_pwrite_all(spool->fds[SPOOL_ORDER], span_make(bytes, sizeof(bytes)),
                         mark_offset(index));
}

int spool_get_mark(struct spool *spool, uint64_t index, struct order_mark *ret_mark)
{
    uint8_t bytes[ORDER_RECORD_BYTES];
    ssize_t n;
    int r;

    if (index + 1 == spool->mark_count) {
        *ret_mark = spool->last;
        return 0;
    }
    if (spool->marks != NULL) {
        *ret_mark = spool->marks[index];
        return 0;
    }
    r = spool_open_file(spool, SPOOL_ORDER, false);
    if (r < 0) {
        return r;
    }
    n = pread(spool->fds[SPOOL_ORDER], bytes, sizeof(bytes), mark_offset(index));
    if (n < 0) {
        return -errno;
    }
    return order_mark_parse(span_make(bytes, (size_t)n), ret_mark);
}

int spool_write_order(struct spool *spool)
{
    int r = spool_write_head(spool);

    for (uint64_t i = 0; r == 0 && i < spool->mark_count; i++) {
        r = spool_write_mark(spool, i, &spool->marks[i]);
    }
    return r;
}

int spool_make_order(struct spool *spool)
{
    int r;

    if (spool->exists[SPOOL_ORDER] && spool->marks == NULL) {
        return 0;
    }
    r = spool_write_order(spool);
    if (r == 0) {
        free(TAKE(spool->marks));
    }
    return r;
}

int spool_find_mark(struct spool *spool, uint64_t total, uint64_t *ret_index)
{
    uint64_t low = spool->mark_first;
    uint64_t high = spool->mark_count;

    if (low == high) {
        return -ENOENT;
    }
    if (order_total(&spool->last.begin) <= total) {
        *ret_index = high - 1;
        return 0;
    }
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        struct order_mark mark = {0};
        int r = spool_get_mark(spool, middle, &mark);

        if (r < 0) {
            return r;
        }
        if (order_total(&mark.begin) <= total) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *ret_index = low;
    return 0;
}

static void punch_range(int fd, uint64_t from, uint64_t to)
{
    if (to > from) {
        /* Refused by some filesystems: then the space comes back with the session's end. */
        (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                        (off_t)(to - from));
    }
}

void spool_pin_set(struct spool *spool, struct spool_pin *pin)
{
    list_append(&spool->pins, &pin->link);
}

void spool_pin_clear(struct spool_pin *pin)
{
    if (pin->link.next != NULL) {
        list_remove(&pin->link);
    }
}

/* The first byte of a stream that must stay. */
static uint64_t first_needed(struct spool *spool, unsigned int stream)
{
    uint64_t first = spool->start.at[stream];
    struct list *it;
    struct list *following;

    list_foreach(it, following, &spool->pins)
    {
        const struct spool_pin *pin = list_entry(it, struct spool_pin, link);

        if (pin->stream == stream && pin->from < first) {
            first = pin->from;
        }
    }
    return first;
}

void spool_punch(struct spool *spool)
{
    uint64_t keep = (spool->limits.head_keep + SPOOL_PAGE - 1) / SPOOL_PAGE * SPOOL_PAGE;

    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        uint64_t from = spool->punched[i] > keep ? spool->punched[i] : keep;
        uint64_t to = first_needed(spool, i) / SPOOL_PAGE * SPOOL_PAGE;

        if (to > from && spool->exists[i] && spool_open_file(spool, i, false) == 0) {
            punch_range(spool->fds[i], from, to);
            spool->punched[i] = to;
        }
    }
    if (spool->exists[SPOOL_ORDER] && spool_open_file(spool, SPOOL_ORDER, false) == 0) {
        /* The first page holds the head. */
        punch_range(spool->fds[SPOOL_ORDER], SPOOL_PAGE,
                    (uint64_t)mark_offset(spool->mark_first) / SPOOL_PAGE * SPOOL_PAGE);
    }
}

void spool_remove(struct spool *spool)
{
    spool_uncount(spool);
    spool_close_files(spool);
    for (unsigned int i = 0; i < SPOOL_FILES && !spool->detached; i++) {
        char name[64];

        if (spool->exists[i]) {
            file_name(spool, i, name);
            (void)unlinkat(spool->dir_fd, name, 0);
            spool->exists[i] = false;
        }
    }
}

/* ---- recovery ---- */

static int file_size(struct spool *spool, unsigned int index, uint64_t *ret_size)
{
    struct stat st;
    int r = spool_open_file(spool, index, false);

    *ret_size = 0;
    if (r == -ENOENT) {
        return 0;
    }
    if (r < 0) {
        return r;
    }
    if (fstat(spool->fds[index], &st) < 0) {
        return -errno;
    }
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

static int check_records(struct spool *spool, struct order_check *check)
{
    _cleanup_buf_ struct buf piece = buf_make(0);
    uint64_t index = check->head.first;

    while (spool->exists[SPOOL_ORDER] && !check->stopped) {
        uint8_t *to = buf_reserve(&piece, RECOVER_READ_BYTES);
        ssize_t n;

        if (to == NULL) {
            return -ENOMEM;
        }
        n = pread(spool->fds[SPOOL_ORDER], to, RECOVER_READ_BYTES, mark_offset(index));
        if (n < 0) {
            return -errno;
        }
        if (n < (ssize_t)ORDER_RECORD_BYTES) {
            break;
        }
        order_check_feed(check, span_make(to, (size_t)n));
        index += (uint64_t)n / ORDER_RECORD_BYTES;
    }
    return 0;
}

static int read_head(struct spool *spool, struct order_head *ret_head)
{
    uint8_t bytes[ORDER_HEAD_BYTES];
    uint64_t size;
    ssize_t n;
    int r = file_size(spool, SPOOL_ORDER, &size);

    if (r < 0 || !spool->exists[SPOOL_ORDER]) {
        return r;
    }
    n = pread(spool->fds[SPOOL_ORDER], bytes, sizeof(bytes), 0);
    if (n < 0) {
        return -errno;
    }
    /* A bad head (a host crash) means that nothing is known of the order: begin at 0. */
    if (order_head_parse(span_make(bytes, (size_t)n), ret_head) < 0) {
        *ret_head = ORDER_HEAD_INIT;
    }
    return 0;
}

static int add_missing_mark(struct spool *spool, const struct order_mark *mark)
{
    int r;

    if (!spool->exists[SPOOL_ORDER] && spool->mark_count == 0) {
        spool->marks = calloc(1, sizeof(*spool->marks));
        if (spool->marks == NULL) {
            return -ENOMEM;
        }
        spool->marks[0] = *mark; /* one stream alone needs no log */
    } else {
        r = spool_make_order(spool);
        if (r == 0) {
            r = spool_write_mark(spool, spool->mark_count, mark);
        }
        if (r < 0) {
            return r;
        }
    }
    spool->last = *mark;
    spool->mark_count++;
    return 0;
}

static int recover_order(struct spool *spool)
{
    struct order_head head = ORDER_HEAD_INIT;
    struct order_check check;
    struct order_mark mark;
    int r = read_head(spool, &head);

    if (r < 0) {
        return r;
    }
    for (unsigned int i = 0; i < ORDER_STREAMS; i++) {
        if (spool->end.at[i] < head.start.at[i]) {
            spool->end.at[i] = head.start.at[i]; /* the disk was full: dropped before written */
        }
    }
    order_check_start(&check, &head, &spool->end);
    r = check_records(spool, &check);
    spool->start = head.start;
    memcpy(spool->head_end, head.head_end, sizeof(spool->head_end));
    spool->mark_first = head.first;
    spool->mark_count = check.valid;
    spool->last = check.last;
    if (r == 0 && spool->exists[SPOOL_ORDER] &&
        ftruncate(spool->fds[SPOOL_ORDER], mark_offset(check.valid)) < 0) {
        return -errno;
    }
    while (r == 0 && order_check_missing(&check, &mark)) {
        r = add_missing_mark(spool, &mark);
    }
    return r;
}

int spool_recover(struct spool_store *store,
                  int dir_fd,
                  const char *session_id,
                  const struct spool_limits *limits,
                  struct spool **ret_spool)
{
    struct spool *spool = spool_new(store, dir_fd, session_id, limits);
    int r;

    if (spool == NULL) {
        return -ENOMEM;
    }
    spool->in_files = true;
    r = file_size(spool, 0, &spool->end.at[0]);
    if (r == 0) {
        r = file_size(spool, 1, &spool->end.at[1]);
    }
    if (r == 0) {
        r = recover_order(spool);
    }
    spool_close_files(spool);
    if (r < 0) {
        spool_free(spool);
        return r;
    }
    spool_count(spool);
    *ret_spool = spool;
    return 0;
}
