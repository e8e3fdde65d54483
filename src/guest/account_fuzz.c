/* The guest's /etc/passwd and /etc/group, which its users may have written: a name, a NUL, one
 * file, a NUL, the other. What is found is whole and in its bounds, and found again. */
#include <stdbool.h>
#include <stdlib.h>

#include "guest/accounts.h"
#include "guest/users.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

static struct span take(struct span *rest)
{
    size_t at = span_find(*rest, 0, 0);
    struct span part = span_head(*rest, at);

    *rest = at == rest->n ? span_make(NULL, 0) : span_skip(*rest, at + 1);
    return part;
}

static void check_names(struct span text, uint32_t id)
{
    struct span name = account_find_name(text, id);
    uint32_t found;

    if (name.n == 0) {
        return;
    }
    require(name.n < USER_TEXT_BYTES && span_find(name, 0, ':') == name.n &&
            span_find(name, 0, '\n') == name.n);
    require(account_find_id(text, name, &found) == 0);
    require(account_find_name(text, found).n > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span rest = span_make(data, size);
    struct span name = take(&rest);
    struct span passwd = take(&rest);
    struct span group = take(&rest);
    struct user user;
    uint64_t number;
    uint32_t id;

    if (user_parse(passwd, group, name, &user) == 0) {
        require(memchr(user.name, 0, sizeof(user.name)) != NULL && user.name[0] != '\0');
        require(memchr(user.home, 0, sizeof(user.home)) != NULL);
        require(memchr(user.shell, 0, sizeof(user.shell)) != NULL && user.shell[0] != '\0');
        require(user.n_groups >= 1 && user.n_groups <= USER_GROUPS_MAX &&
                user.groups[0] == user.gid);
        require(user.uid != UINT32_MAX && user.gid != UINT32_MAX); /* -1 means no change to chown */
        require(span_equals_str(name, user.name) ||
                (span_parse_u64(name, UINT32_MAX, &number) == 0 && number == user.uid));
        check_names(passwd, user.uid);
        check_names(group, user.gid);
    }
    if (account_find_id(group, name, &id) == 0) {
        require(id != UINT32_MAX && account_find_name(group, id).n > 0);
    }
    check_names(passwd, 0);
    check_names(group, 1000);
    return 0;
}
