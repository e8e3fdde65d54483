#include "guest/users.h"

#include <errno.h>
#include <fcntl.h>

#include "base/buf.h"
#include "base/fd.h"

#define PASSWD_FIELDS 7U
#define GROUP_FIELDS  4U

/* Takes the part up to separator c, or all, off *rest. */
static struct span take_until(struct span *rest, uint8_t c)
{
    size_t at = span_find(*rest, 0, c);
    struct span part = span_head(*rest, at);

    *rest = at == rest->n ? span_make(NULL, 0) : span_skip(*rest, at + 1);
    return part;
}

/* Splits a line in n fields; false when there are fewer. */
static bool split_line(struct span line, struct span *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (line.n == 0 && i > 0 && i < n - 1) {
            return false;
        }
        fields[i] = i == n - 1 ? line : take_until(&line, ':');
    }
    return true;
}

static int parse_passwd_line(struct span line, struct span name, struct user *ret)
{
    struct span fields[PASSWD_FIELDS];
    uint64_t uid;
    uint64_t gid;
    uint64_t wanted;

    if (!split_line(line, fields, PASSWD_FIELDS) || fields[0].n == 0) {
        return -ENOENT;
    }
    if (span_parse_u64(fields[2], UINT32_MAX - 1, &uid) < 0 ||
        span_parse_u64(fields[3], UINT32_MAX - 1, &gid) < 0) {
        return -ENOENT;
    }
    if (!span_equals(fields[0], name) &&
        (span_parse_u64(name, UINT32_MAX - 1, &wanted) < 0 || wanted != uid)) {
        return -ENOENT;
    }
    if (span_copy_str(fields[0], ret->name, sizeof(ret->name)) < 0 ||
        span_copy_str(fields[5], ret->home, sizeof(ret->home)) < 0 ||
        span_copy_str(fields[6], ret->shell, sizeof(ret->shell)) < 0) {
        return -EBADMSG;
    }
    if (ret->shell[0] == '\0') {
        (void)span_copy_str(span_of_str("/bin/sh"), ret->shell, sizeof(ret->shell));
    }
    ret->uid = (uid_t)uid;
    ret->gid = (gid_t)gid;
    return 0;
}

static bool is_member(struct span members, struct span name)
{
    while (members.n > 0) {
        if (span_equals(take_until(&members, ','), name)) {
            return true;
        }
    }
    return false;
}

static void parse_groups(struct span group, struct user *user)
{
    struct span name = span_of_str(user->name);

    user->groups[0] = user->gid;
    user->n_groups = 1;
    while (group.n > 0 && user->n_groups < USER_GROUPS_MAX) {
        struct span fields[GROUP_FIELDS];
        uint64_t gid;

        if (split_line(take_until(&group, '\n'), fields, GROUP_FIELDS) &&
            is_member(fields[3], name) && span_parse_u64(fields[2], UINT32_MAX - 1, &gid) == 0 &&
            gid != user->gid) {
            user->groups[user->n_groups++] = (gid_t)gid;
        }
    }
}

int user_parse(struct span passwd, struct span group, struct span name, struct user *ret_user)
{
    while (passwd.n > 0) {
        struct user user = {.uid = 0};
        int r = parse_passwd_line(take_until(&passwd, '\n'), name, &user);

        if (r == -ENOENT) {
            continue;
        }
        if (r == 0) {
            parse_groups(group, &user);
            *ret_user = user;
        }
        return r;
    }
    return -ENOENT;
}

int users_read_file(const char *path, struct buf *ret_text)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        return -errno;
    }
    return S_ISREG(st.st_mode) ? fd_read_all(fd, ret_text) : -ENOENT;
}

static bool is_same_file(const char *path, const struct stat *before)
{
    struct stat now;

    return stat(path, &now) == 0 && now.st_ino == before->st_ino && now.st_dev == before->st_dev &&
           now.st_size == before->st_size && now.st_ctim.tv_sec == before->st_ctim.tv_sec &&
           now.st_ctim.tv_nsec == before->st_ctim.tv_nsec;
}

static void find_root_anyway(struct user *user)
{
    *user = (struct user){.name = "root", .home = "/root", .shell = "/bin/sh", .n_groups = 1};
}

int users_find(struct users *u, struct span name, const struct user **ret_user)
{
    _cleanup_buf_ struct buf passwd = buf_make(USERS_FILE_MAX);
    _cleanup_buf_ struct buf group = buf_make(USERS_FILE_MAX);
    bool is_root = name.n == 0;
    int r;

    if (u->valid && span_equals_str(name, u->asked) && is_same_file("/etc/passwd", &u->passwd) &&
        is_same_file("/etc/group", &u->group)) {
        *ret_user = &u->user;
        return 0;
    }
    /* The times are taken before reading, so a change meanwhile is seen the next time. */
    u->valid = stat("/etc/passwd", &u->passwd) == 0 && stat("/etc/group", &u->group) == 0 &&
               span_copy_str(name, u->asked, sizeof(u->asked)) == 0;
    if (is_root) {
        name = span_of_str("root");
    }
    r = users_read_file("/etc/passwd", &passwd);
    if (r == 0) {
        if (users_read_file("/etc/group", &group) < 0) {
            buf_clear(&group); /* without it there is only the primary group */
        }
        r = user_parse(buf_span(&passwd), buf_span(&group), name, &u->user);
    }
    if (r < 0 && is_root) {
        find_root_anyway(&u->user);
        r = 0;
    }
    if (r < 0) {
        u->valid = false;
        return r;
    }
    *ret_user = &u->user;
    return 0;
}
