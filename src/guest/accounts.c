#include "guest/accounts.h"

#include <errno.h>

#include "guest/users.h"

static struct span take_until(struct span *rest, uint8_t c)
{
    size_t at = span_find(*rest, 0, c);
    struct span part = span_head(*rest, at);

    *rest = at == rest->n ? span_make(NULL, 0) : span_skip(*rest, at + 1);
    return part;
}

/* The next usable line of a file. False at the end. */
static bool next_account(struct span *text, struct span *ret_name, uint32_t *ret_id)
{
    while (text->n > 0) {
        struct span line = take_until(text, '\n');
        struct span name = take_until(&line, ':');
        uint64_t id;

        (void)take_until(&line, ':');
        if (name.n > 0 && name.n < USER_TEXT_BYTES &&
            span_parse_u64(take_until(&line, ':'), UINT32_MAX - 1, &id) == 0) {
            *ret_name = name;
            *ret_id = (uint32_t)id;
            return true;
        }
    }
    return false;
}

struct span account_find_name(struct span text, uint32_t id)
{
    struct span name;
    uint32_t found;

    while (next_account(&text, &name, &found)) {
        if (found == id) {
            return name;
        }
    }
    return span_make(NULL, 0);
}

int account_find_id(struct span text, struct span name, uint32_t *ret_id)
{
    struct span found;
    uint32_t id;

    while (next_account(&text, &found, &id)) {
        if (span_equals(found, name)) {
            *ret_id = id;
            return 0;
        }
    }
    return -ENOENT;
}

void accounts_init(struct accounts *a)
{
    *a = (struct accounts){.passwd = buf_make(USERS_FILE_MAX), .group = buf_make(USERS_FILE_MAX)};
}

void accounts_done(struct accounts *a)
{
    buf_done(&a->passwd);
    buf_done(&a->group);
}

/* Without the files, nobody has a name. */
static void load(struct accounts *a)
{
    if (a->loaded) {
        return;
    }
    a->loaded = true;
    if (users_read_file("/etc/passwd", &a->passwd) < 0) {
        buf_clear(&a->passwd);
    }
    if (users_read_file("/etc/group", &a->group) < 0) {
        buf_clear(&a->group);
    }
}

struct span accounts_user_name(struct accounts *a, uid_t uid)
{
    if (!a->has_user || a->uid != uid) {
        load(a);
        a->user = account_find_name(buf_span(&a->passwd), uid);
        a->uid = uid;
        a->has_user = true;
    }
    return a->user;
}

struct span accounts_group_name(struct accounts *a, gid_t gid)
{
    if (!a->has_group || a->gid != gid) {
        load(a);
        a->group_name = account_find_name(buf_span(&a->group), gid);
        a->gid = gid;
        a->has_group = true;
    }
    return a->group_name;
}

static int find_id(const struct buf *file, struct span text, uint32_t *ret_id)
{
    uint64_t number;

    if (account_find_id(buf_span(file), text, ret_id) == 0) {
        return 0;
    }
    if (span_parse_u64(text, UINT32_MAX - 1, &number) < 0) {
        return -EINVAL;
    }
    *ret_id = (uint32_t)number;
    return 0;
}

int accounts_user_id(struct accounts *a, struct span text, uid_t *ret_uid)
{
    load(a);
    return find_id(&a->passwd, text, ret_uid);
}

int accounts_group_id(struct accounts *a, struct span text, gid_t *ret_gid)
{
    load(a);
    return find_id(&a->group, text, ret_gid);
}
