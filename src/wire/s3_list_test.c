/* Lists of a bucket: what servers send, and what must not pass for one. */
#include "wire/s3_list.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const char page[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
    "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>"
    "<Prefix>p/</Prefix><KeyCount>2</KeyCount><IsTruncated>true</IsTruncated>"
    "<NextContinuationToken>a+/=&amp;b</NextContinuationToken>"
    "<Contents><Key>p/one</Key><LastModified>2026-11-30T10:00:00.000Z</LastModified>"
    "<ETag>&#34;abc&#34;</ETag><Size>12</Size><Owner><ID>x</ID></Owner></Contents>"
    "<Contents><Key>p/t&lt;wo</Key><LastModified>2026-11-30T10:00:01Z</LastModified>"
    "<Size>0</Size></Contents></ListBucketResult>";

static void test_page(void **state)
{
    struct s3_list list;
    struct s3_object object;

    (void)state;
    assert_int_equal(s3_list_parse(span_of_str(page), &list), 0);
    assert_true(list.is_truncated);
    assert_string_equal(list.token, "a+/=&b");
    assert_int_equal(s3_list_next(&list, &object), 1);
    assert_string_equal(object.key, "p/one");
    assert_string_equal(object.modified, "2026-11-30T10:00:00.000Z");
    assert_int_equal(object.bytes, 12);
    assert_int_equal(s3_list_next(&list, &object), 1);
    assert_string_equal(object.key, "p/t<wo");
    assert_int_equal(s3_list_next(&list, &object), 0);
}

static void test_refused(void **state)
{
    static const char *const heads[] = {
        "",
        "<ListBucketResult></ListBucketResult>",
        "<ListBucketResult><IsTruncated>perhaps</IsTruncated></ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><IsTruncated>false</IsTruncated>",
        ("<ListBucketResult><IsTruncated>false</IsTruncated><IsTruncated>false</IsTruncated>"
         "</ListBucketResult>"),
    };
    static const char *const bodies[] = {
        "<Contents><Key>a</Key><Size>1</Size></Contents>",
        "<Contents><Key>a</Key><LastModified>x</LastModified><Size>-1</Size></Contents>",
        "<Contents><Key>a<b/></Key><LastModified>x</LastModified><Size>1</Size></Contents>",
        "<Contents><Key>a&unknown;</Key><LastModified>x</LastModified><Size>1</Size></Contents>",
        "<Contents><Key></Key><LastModified>x</LastModified><Size>1</Size></Contents>",
        "<Contents><Key>a</Key><LastModified>x</LastModified><Size>1</Size>",
        "</Contents>",
    };
    struct s3_list list;
    struct s3_object object;

    (void)state;
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        assert_int_equal(s3_list_parse(span_of_str(heads[i]), &list), -EBADMSG);
    }
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        list = (struct s3_list){.rest = span_of_str(bodies[i])};
        assert_int_equal(s3_list_next(&list, &object), -EBADMSG);
    }
}

static void test_uploads(void **state)
{
    static const char whole[] =
        "<ListMultipartUploadsResult><Bucket>b</Bucket><UploadIdMarker></UploadIdMarker>"
        "<Upload><Key>p/manifests/a</Key><UploadId>i+/=&amp;</UploadId><Initiator><ID>x</ID>"
        "</Initiator><Initiated>2026-11-30T10:00:00.000Z</Initiated></Upload>"
        "<Upload><Key>p/b</Key><UploadId>2</UploadId></Upload></ListMultipartUploadsResult>";
    struct s3_list list;
    struct s3_upload upload;

    (void)state;
    assert_int_equal(s3_uploads_parse(span_of_str(page), &list), -EBADMSG);
    assert_int_equal(s3_uploads_parse(span_of_str(whole), &list), 0);
    assert_int_equal(s3_uploads_next(&list, &upload), 1);
    assert_string_equal(upload.key, "p/manifests/a");
    assert_string_equal(upload.id, "i+/=&");
    assert_string_equal(upload.initiated, "2026-11-30T10:00:00.000Z");
    assert_int_equal(s3_uploads_next(&list, &upload), -EBADMSG); /* without its time */
}

static void test_text(void **state)
{
    char text[8];

    (void)state;
    assert_int_equal(s3_text_parse(span_of_str("<E><Code>Slow</Code></E>"), "Code", text, 8), 0);
    assert_string_equal(text, "Slow");
    assert_int_equal(s3_text_parse(span_of_str("<E/>"), "Code", text, 8), -EBADMSG);
    assert_int_equal(s3_text_parse(span_of_str("<Code>too long a text</Code>"), "Code", text, 8),
                     -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_uploads),
        cmocka_unit_test(test_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
