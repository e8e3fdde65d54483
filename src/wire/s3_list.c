#include "wire/s3_list.h"

#include <errno.h>

#include "base/cleanup.h"

#define NAME_MAX_BYTES 40U

static const struct {
    const char *text;
    char c;
} entities[] = {{"amp;", '&'},   {"lt;", '<'},  {"gt;", '>'},  {"quot;", '"'},
                {"apos;", '\''}, {"#34;", '"'}, {"#39;", '\''}};

static size_t find_text(struct span s, const char *text)
{
    struct span want = span_of_str(text);

    if (s.p == NULL) {
        return s.n;
    }
    for (size_t i = 0; want.n <= s.n && i <= s.n - want.n; i++) {
        if (s.p[i] == want.p[0] && span_equals(span_head(span_skip(s, i), want.n), want)) {
            return i;
        }
    }
    return s.n;
}

/* "<" NAME ">" or "</" NAME ">". */
static struct span tag_of(const char *name, bool closes, uint8_t room[NAME_MAX_BYTES + 4])
{
    size_t n = 0;

    room[n++] = '<';
    if (closes) {
        room[n++] = '/';
    }
    for (size_t i = 0; name[i] != '\0' && n < NAME_MAX_BYTES; i++) {
        room[n++] = (uint8_t)name[i];
    }
    room[n++] = '>';
    room[n] = '\0';
    return span_make(room, n);
}

/* The inside of the first element of this name; *ret_end is behind it. 1, 0 for none, -EBADMSG. */
static int find_element(struct span s, const char *name, struct span *ret, size_t *ret_end)
{
    uint8_t open[NAME_MAX_BYTES + 4];
    uint8_t close[NAME_MAX_BYTES + 4];
    size_t open_bytes = tag_of(name, false, open).n;
    size_t close_bytes = tag_of(name, true, close).n;
    size_t begin = find_text(s, (const char *)open);
    size_t end;

    if (begin == s.n) {
        return find_text(s, (const char *)close) == s.n ? 0 : -EBADMSG;
    }
    s = span_skip(s, begin + open_bytes);
    end = find_text(s, (const char *)close);
    if (end == s.n) {
        return -EBADMSG;
    }
    *ret = span_head(s, end);
    *ret_end = begin + open_bytes + end + close_bytes;
    return 1;
}

/* How many bytes of s an entity takes, and what it says; 0: none that is known. */
static size_t read_entity(struct span s, char *ret)
{
    for (size_t i = 0; i < sizeof(entities) / sizeof(entities[0]); i++) {
        struct span text = span_of_str(entities[i].text);

        if (span_equals(span_head(s, text.n), text)) {
            *ret = entities[i].c;
            return text.n;
        }
    }
    return 0;
}

static int read_text(struct span s, char *out, size_t size)
{
    size_t n = 0;

    while (s.n > 0) {
        char c = (char)s.p[0];
        size_t used = 1;

        if (s.p[0] == '&') {
            size_t more = read_entity(span_skip(s, 1), &c);

            if (more == 0) {
                return -EBADMSG;
            }
            used += more;
        }
        if (s.p[0] == '<' || s.p[0] < 0x20 || n + 1 >= size) {
            return -EBADMSG;
        }
        out[n++] = c;
        s = span_skip(s, used);
    }
    out[n] = '\0';
    return 0;
}

static int get_text(struct span s, const char *name, char *out, size_t size)
{
    struct span inside;
    struct span again;
    size_t end = 0;
    int r = find_element(s, name, &inside, &end);

    if (r <= 0) {
        return r;
    }
    if (find_element(span_skip(s, end), name, &again, &end) != 0 || inside.n == 0) {
        return -EBADMSG;
    }
    return read_text(inside, out, size) < 0 ? -EBADMSG : 1;
}

int s3_text_parse(struct span body, const char *name, char *out, size_t size)
{
    return get_text(body, name, out, size) == 1 ? 0 : -EBADMSG;
}

int s3_list_parse(struct span body, struct s3_list *ret)
{
    struct s3_list list = {.rest = body};
    char text[8];
    int r;

    if (find_text(body, "<ListBucketResult") == body.n ||
        find_text(body, "</ListBucketResult>") == body.n ||
        get_text(body, "IsTruncated", text, sizeof(text)) != 1) {
        return -EBADMSG;
    }
    list.is_truncated = span_equals_str(span_of_str(text), "true");
    if (!list.is_truncated && !span_equals_str(span_of_str(text), "false")) {
        return -EBADMSG;
    }
    if (list.is_truncated) {
        r = get_text(body, "NextContinuationToken", list.token, sizeof(list.token));
        if (r != 1) {
            return -EBADMSG;
        }
    }
    *ret = list;
    return 0;
}

int s3_list_next(struct s3_list *list, struct s3_object *ret)
{
    struct s3_object object = {.bytes = 0};
    struct span inside;
    char text[24];
    size_t end = 0;
    int r = find_element(list->rest, "Contents", &inside, &end);

    if (r <= 0) {
        return r;
    }
    if (get_text(inside, "Key", object.key, sizeof(object.key)) != 1 ||
        get_text(inside, "LastModified", object.modified, sizeof(object.modified)) != 1 ||
        get_text(inside, "Size", text, sizeof(text)) != 1 ||
        span_parse_u64(span_of_str(text), INT64_MAX, &object.bytes) < 0) {
        return -EBADMSG;
    }
    list->rest = span_skip(list->rest, end);
    *ret = object;
    return 1;
}

int s3_uploads_parse(struct span body, struct s3_list *ret)
{
    if (find_text(body, "<ListMultipartUploadsResult") == body.n ||
        find_text(body, "</ListMultipartUploadsResult>") == body.n) {
        return -EBADMSG;
    }
    *ret = (struct s3_list){.rest = body};
    return 0;
}

int s3_uploads_next(struct s3_list *list, struct s3_upload *ret)
{
    struct s3_upload upload = {.key = ""};
    struct span inside;
    size_t end = 0;
    int r = find_element(list->rest, "Upload", &inside, &end);

    if (r <= 0) {
        return r;
    }
    if (get_text(inside, "Key", upload.key, sizeof(upload.key)) != 1 ||
        get_text(inside, "UploadId", upload.id, sizeof(upload.id)) != 1 ||
        get_text(inside, "Initiated", upload.initiated, sizeof(upload.initiated)) != 1) {
        return -EBADMSG;
    }
    list->rest = span_skip(list->rest, end);
    *ret = upload;
    return 1;
}
