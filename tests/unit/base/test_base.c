/* The floor: random numbers against published vectors, permutation, memory accounting, text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/base/visible.h"

static void philox_known_answers(void **state)
{
    (void)state;
    /* Random123's kat_vectors, philox4x32-10 with counter and key zero, and with all bits set in
     * the words that tr_philox_block can reach */
    tr_philox p = tr_philox_block(0, 0, 0);
    assert_int_equal(p.v[0], 0x6627e8d5);
    assert_int_equal(p.v[1], 0xe169c58d);
    assert_int_equal(p.v[2], 0xbc57ac4c);
    assert_int_equal(p.v[3], 0x9b00dbd8);
}

static void philox_streams_differ(void **state)
{
    (void)state;
    tr_philox a = tr_philox_at(1, TR_RNG_INIT, 0, 5, 0),
              b = tr_philox_at(1, TR_RNG_DROPOUT, 0, 5, 0);
    tr_philox c = tr_philox_at(1, TR_RNG_INIT, 1, 5, 0), d = tr_philox_at(2, TR_RNG_INIT, 0, 5, 0);
    tr_philox e = tr_philox_at(1, TR_RNG_INIT, 0, 5, 0);
    assert_memory_not_equal(&a, &b, sizeof a);
    assert_memory_not_equal(&a, &c, sizeof a);
    assert_memory_not_equal(&a, &d, sizeof a);
    assert_memory_equal(&a, &e, sizeof a);
}

static void normals_have_the_moments(void **state)
{
    (void)state;
    enum { N = 100000 };
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < N; i++) {
        tr_philox p = tr_philox_at(3, TR_RNG_TEST, 0, i, 0);
        float z[2];
        tr_normal2(p.v[0], p.v[1], z);
        sum += (double)z[0] + z[1];
        squares += (double)z[0] * z[0] + (double)z[1] * z[1];
    }
    /* standard errors: 1/sqrt(2N) = 0.0022 and sqrt(2/(2N)) = 0.0032; five of each */
    assert_true(fabs(sum / (2 * N)) < 0.011);
    assert_true(fabs(squares / (2 * N) - 1) < 0.016);
}

static void permutation_is_one(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 255, 1000, 4097};
    static unsigned char seen[4097];
    for (size_t s = 0; s < TR_COUNT(sizes); s++) {
        for (uint64_t round = 0; round < 3; round++) {
            memset(seen, 0, sizeof seen);
            uint64_t fixed = 0;
            for (uint64_t i = 0; i < sizes[s]; i++) {
                uint64_t p = tr_permute(9, round, sizes[s], i);
                assert_true(p < sizes[s]);
                assert_int_equal(seen[p], 0);
                seen[p] = 1;
                fixed += p == i;
            }
            if (sizes[s] >= 255) assert_true(fixed < 12); /* expected: 1 */
        }
    }
    uint64_t moved = 0;
    for (uint64_t i = 0; i < 1000; i++)
        moved += tr_permute(9, 0, 1000, i) != tr_permute(9, 1, 1000, i);
    assert_true(moved > 980);
    assert_true(tr_permute(1, 2, (uint64_t)1 << 40, 12345) < (uint64_t)1 << 40);
}

static void memory_is_counted(void **state)
{
    (void)state;
    size_t before = tr_mem_held(TR_MEM_IO);
    char *p = tr_alloc(TR_MEM_IO, 100, 10);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    for (int i = 0; i < 1000; i++) assert_int_equal(p[i], 0);
    assert_int_equal(tr_mem_held(TR_MEM_IO), before + 1000);
    p[999] = 7;
    p = tr_realloc(TR_MEM_IO, p, 200, 10);
    assert_int_equal(p[999], 7);
    assert_int_equal(p[1999], 0);
    assert_int_equal(tr_mem_held(TR_MEM_IO), before + 2000);
    tr_free(p);
    assert_int_equal(tr_mem_held(TR_MEM_IO), before);
    assert_true(tr_mem_peak(TR_MEM_IO) >= before + 2000);
    assert_null(tr_alloc(TR_MEM_IO, SIZE_MAX / 2, 3));
    assert_int_equal(tr_last_error()->status, TR_MEMORY);
    assert_null(tr_alloc(TR_MEM_IO, SIZE_MAX - 8, 1));
    assert_null(tr_alloc(TR_MEM_IO, SIZE_MAX - 4096, 1)); /* rounded up to a page, it would be 0 */
    const size_t probed = (size_t)96 << 20, peak = tr_mem_peak_rss();
    /* not by malloc: sanitizers keep what is freed */
    p = mmap(NULL, probed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    memset(p, 1, probed);
    assert_true(((volatile char *)p)[probed / 2] == 1 && tr_mem_peak_rss() >= probed);
    assert_int_equal(munmap(p, probed), 0);
    tr_mem_peak_rss_again(peak);
    if (access("/proc/self/clear_refs", W_OK) == 0)
        assert_true(tr_mem_peak_rss() >= peak && tr_mem_peak_rss() < peak + probed / 2);
    assert_true(tr_mem_available() > 1 << 20); /* or this test would not run */
}

/* What grows by one is moved at powers of two alone; what was there stays, the rest is zero. */
static void grown_by_one(void **state)
{
    (void)state;
    enum { N = 3000 };
    const uint64_t calls = tr_mem_calls();
    const size_t before = tr_mem_held(TR_MEM_IO);
    int *v = NULL;
    for (int i = 0; i < N; i++) {
        v = tr_room_for_one(TR_MEM_IO, v, (size_t)i, sizeof *v);
        assert_non_null(v);
        assert_int_equal(v[i], 0);
        v[i] = i + 1;
    }
    for (int i = 0; i < N; i++) assert_int_equal(v[i], i + 1);
    assert_int_equal(tr_mem_calls() - calls, 13); /* 1 to 4096 */
    v = tr_realloc(TR_MEM_IO, v, 2, sizeof *v);
    assert_true(v[0] == 1 && v[1] == 2 && tr_mem_held(TR_MEM_IO) == before + 2 * sizeof *v);
    tr_free(v);
    assert_int_equal(tr_mem_held(TR_MEM_IO), before);
}

/* The flags that the kernel has for the mapping of an address: "rd wr ... hg"; false: it does not
 * say. */
static bool mapping_flags(const void *address, char *flags, size_t size)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long begin, end, at = (unsigned long)(uintptr_t)address;
    bool within = false, found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) within = begin <= at && at < end;
        found = within && !strncmp(line, "VmFlags:", 8);
    }
    if (found) snprintf(flags, size, "%s", line);
    if (f) fclose(f);
    return found;
}

static void large_blocks_ask_for_huge_pages(void **state)
{
    (void)state;
    const size_t page = 2 << 20;
    char flags[512];
    char *large = tr_alloc(TR_MEM_IO, 5 * page + 3, 1), *small = tr_alloc(TR_MEM_IO, page, 1);
    assert_non_null(large);
    assert_non_null(small);
    assert_int_equal((uintptr_t)large % page, 64); /* behind the header */
    assert_int_equal(large[5 * page + 2], 0);
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) == 0 &&
        mapping_flags(large, flags, sizeof flags))
        assert_non_null(strstr(flags, " hg"));
    if (mapping_flags(small, flags, sizeof flags)) assert_null(strstr(flags, " hg"));
    tr_free(large);
    tr_free(small);
}

static void ended_processes_are_gone(void **state)
{
    (void)state;
    assert_false(tr_process_gone((long)getpid()));
    const pid_t child = fork();
    if (child == 0) _exit(0);
    assert_true(child > 0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT),
                     0); /* a zombie it stays */
    assert_true(tr_process_gone(child));
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_true(tr_process_gone(child));
}

static void nth_allocation_fails(void **state)
{
    (void)state;
    tr_mem_fail_at(2);
    void *a = tr_alloc(TR_MEM_OTHER, 1, 1), *b = tr_alloc(TR_MEM_OTHER, 1, 1),
         *c = tr_alloc(TR_MEM_OTHER, 1, 1);
    assert_non_null(a);
    assert_null(b);
    assert_int_equal(tr_last_status(), TR_MEMORY); /* what its caller hands on */
    assert_non_null(c);
    tr_free(a);
    tr_free(c);
}

/* Every half comes back; halfway between two neighbours goes to the even one, a little more or less
 * to the nearer. */
static void f16_rounds_to_even(void **state)
{
    (void)state;
    assert_true(tr_f16_to_f32(0x3c00) == 1 && tr_f16_to_f32(0x7bff) == 65504);
    assert_true(tr_f16_to_f32(0x0001) == 0x1p-24f && tr_f16_to_f32(0x8400) == -0x1p-14f);
    assert_int_equal(tr_f32_to_f16(65519.99f), 0x7bff);
    assert_int_equal(tr_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(tr_f32_to_f16(-INFINITY), 0xfc00);
    assert_true(isnan(tr_f16_to_f32(tr_f32_to_f16(NAN))));
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const float f = tr_f16_to_f32((tr_f16)h), next = tr_f16_to_f32((tr_f16)(h + 1));
        assert_int_equal(tr_f32_to_f16(f), h);
        assert_int_equal(tr_f32_to_f16(-f), h | 0x8000);
        if (h == 0x7bff) break;
        const float middle = f + (next - f) / 2;
        assert_int_equal(tr_f32_to_f16(middle), h + (h & 1));
        assert_int_equal(tr_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(tr_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
    }
}

static void bf16_rounds_to_even(void **state)
{
    (void)state;
    assert_int_equal(tr_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(tr_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);     /* tie: to even */
    assert_int_equal(tr_f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82); /* tie: to even */
    assert_int_equal(tr_f32_to_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
    assert_int_equal(tr_f32_to_bf16(INFINITY), 0x7f80);
    assert_true(isnan(tr_bf16_to_f32(tr_f32_to_bf16(NAN))));
    for (uint32_t b = 0; b < 0x10000; b++) {
        float f = tr_bf16_to_f32((tr_bf16)b);
        if (!isnan(f)) assert_int_equal(tr_f32_to_bf16(f), b);
    }
}

static void texts(void **state)
{
    (void)state;
    char buf[32];
    assert_string_equal(tr_format_bytes(0, buf, sizeof buf), "0 B");
    assert_string_equal(tr_format_bytes(12345, buf, sizeof buf), "12.3 kB");
    assert_string_equal(tr_format_bytes(1234567890, buf, sizeof buf), "1.23 GB");
    assert_string_equal(tr_format_bytes(999999, buf, sizeof buf), "1.00 MB");
    assert_string_equal(tr_format_seconds(12.34, buf, sizeof buf), "12.3 s");
    assert_string_equal(tr_format_seconds(3723, buf, sizeof buf), "1:02:03");
    static const char *const names[] = {"batch", "epochs", "steps"};
    assert_string_equal(tr_nearest("bacth", names, 3), "batch");
    assert_string_equal(tr_nearest("epoch", names, 3), "epochs");
    assert_null(tr_nearest("optimizer", names, 3));
    static const char *const few[] = {"r2", "f1", "adamw", "sgd", "Species", "pipeline", "x"};
    assert_string_equal(tr_nearest("sdg", few, TR_COUNT(few)), "sgd");
    assert_string_equal(tr_nearest("ADAM", few, TR_COUNT(few)), "adamw");
    assert_string_equal(tr_nearest("specis", few, TR_COUNT(few)), "Species");
    assert_null(tr_nearest("r", few, TR_COUNT(few)));
    assert_string_equal(tr_nearest("f2", few, TR_COUNT(few)), "r2");
    assert_null(tr_nearest("y", few, TR_COUNT(few)));     /* nothing is the same */
    assert_null(tr_nearest("ab", few, TR_COUNT(few)));    /* nor here */
    assert_null(tr_nearest("axe", few, TR_COUNT(few)));   /* "x" and two letters more */
    assert_null(tr_nearest("plate", few, TR_COUNT(few))); /* six edits from "pipeline" */
    assert_null(tr_nearest("", few, TR_COUNT(few)));
    assert_string_equal(tr_nearest("sgd.1", few, TR_COUNT(few)), "sgd");
    assert_string_equal(tr_nearest("epcs", names, 3), "epochs"); /* letters are missing */
    assert_null(tr_nearest("stop", names, 3));
    char hex[65];
    tr_sha256_hex("abc", 3, hex); /* FIPS 180-4's example */
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    tr_sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

/* Controls and bytes that are no UTF-8 are shown, the rest is kept; in one piece and as a stream
 * that is written in any. */
/* Cells are of as many characters, and what is long ends in dots. */
static void cells(void **state)
{
    (void)state;
    static const struct {
        const char *text, *brief, *right, *left;
    } of[] = {
        {"", "", "     ", "     "},
        {"abc", "abc", "  abc", "abc  "},
        {"gr\xc3\xb6\xc3\x9f"
         "e",
         "gr\xc3\xb6\xc3\x9f"
         "e",
         "gr\xc3\xb6\xc3\x9f"
         "e",
         "gr\xc3\xb6\xc3\x9f"
         "e"},
        {"\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac",
         "\xe2\x82\xac\xe2\x82\xac...", "\xe2\x82\xac\xe2\x82\xac...",
         "\xe2\x82\xac\xe2\x82\xac..."},
        {"\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82",
         "\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82",
         "\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82",
         "\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82\xf0\x9f\x99\x82"},
    };
    for (size_t i = 0; i < TR_COUNT(of); i++)
        for (int width = -5; width <= 5; width += 10) {
            char brief[TR_BRIEF(5)], *text = NULL;
            size_t n;
            assert_string_equal(tr_utf8_brief(of[i].text, 5, brief), of[i].brief);
            FILE *to = open_memstream(&text, &n);
            tr_write_cell(to, width, brief);
            assert_int_equal(fclose(to), 0);
            assert_string_equal(text, width > 0 ? of[i].right : of[i].left);
            assert_int_equal(tr_utf8_count(text), 5);
            free(text);
        }
}

static void text_is_visible(void **state)
{
    (void)state;
    static const char from[] =
        "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80 \x1b]0;x\x07 \x7f \xc2\x9b"
        "1m \xff \xc3( \xe2\x82 \xed\xa0\x80 \xf4\x90\x80\x80 \r\t\b end \xf0\x9f";
    static const char want[] =
        "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80 \\x1b]0;x\\x07 \\x7f \\x9b1m \\xff \\xc3( "
        "\\xe2\\x82 \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80 \\x0d\\x09\\x08 end \\xf0\\x9f";
    char shown[256];
    assert_int_equal(tr_visible(from, sizeof from - 1, shown, sizeof shown), sizeof want - 1);
    assert_string_equal(shown, want);
    assert_int_equal(tr_visible("a\x1b", 2, shown, 5), 1); /* no half of one */
    assert_int_equal(tr_visible("\xe2\x82\xac", 3, shown, 3), 0);
    assert_int_equal(tr_visible("a\nb", 3, shown, sizeof shown), 6);
    for (size_t piece = 1; piece < sizeof from; piece++) {
        char *text = NULL;
        size_t n;
        FILE *to = open_memstream(&text, &n), *stream = tr_visible_stream(to);
        assert_non_null(stream);
        setvbuf(stream, NULL, _IONBF, 0);
        for (size_t at = 0; at < sizeof from - 1; at += piece) {
            const size_t left = sizeof from - 1 - at;
            assert_int_equal(fwrite(from + at, 1, left < piece ? left : piece, stream),
                             left < piece ? left : piece);
        }
        fputc('\n', stream);
        assert_int_equal(fclose(stream), 0);
        fclose(to);
        assert_int_equal(n, sizeof want);
        assert_memory_equal(text, want, sizeof want - 1);
        free(text);
    }
}

/* Temporaries of the file: one whose writer is gone, which the next write of the file removes, one
 * whose writer works, and one of a file beside it. They are made, or looked for and removed. */
static void put_leftovers(const char *path, bool make)
{
    static pid_t gone;
    char host[65] = "", name[200];
    gethostname(host, 64);
    if (make) {
        gone = fork();
        if (gone == 0) _exit(0);
        assert_int_equal(waitpid(gone, NULL, 0), gone);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s.tmp-%ld.%s", path, i == 2 ? "2" : "",
                 (long)(i == 1 ? getppid() : gone), host);
        if (make) {
            const int fd = open(name, O_CREAT | O_WRONLY, 0666);
            assert_true(fd >= 0 && close(fd) == 0);
        } else
            assert_int_equal(unlink(name), i == 0 ? -1 : 0);
    }
}

/* A text's file appears when it is closed, and not at all where who wrote it failed. */
static void texts_are_whole_or_absent(void **state)
{
    (void)state;
    char folder[] = "/tmp/trireme-base-XXXXXX", text[16];
    tr_text_file f;
    assert_non_null(mkdtemp(folder));
    char *path = tr_sprintf("%s/text", folder), *away = tr_sprintf("%s/no/text", folder);
    assert_int_equal(tr_text_file_open(&f, path), TR_OK);
    fputs("half", f.to);
    assert_int_equal(tr_text_file_close(&f, TR_DATA), TR_DATA);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(tr_text_file_open(&f, path), TR_OK);
    fputs("whole", f.to);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(tr_text_file_close(&f, TR_OK), TR_OK);
    FILE *made = fopen(path, "r");
    assert_non_null(made);
    assert_non_null(fgets(text, sizeof text, made));
    fclose(made);
    assert_string_equal(text, "whole");
    put_leftovers(path, true);
    assert_int_equal(tr_text_file_open(&f, path), TR_OK);
    assert_int_equal(tr_text_file_close(&f, TR_OK), TR_OK);
    put_leftovers(path, false);
    assert_int_equal(tr_text_file_open(&f, away), TR_OK);
    assert_int_equal(tr_text_file_close(&f, TR_OK), TR_IO);
    assert_int_equal(tr_text_file_open(&f, NULL), TR_MEMORY);
    assert_int_equal(tr_text_file_close(&f, TR_MEMORY), TR_MEMORY);
    unlink(path);
    rmdir(folder);
    tr_free(path);
    tr_free(away);
}

/* Characters that a pattern obeys are a name's own; what begins alike, or is elsewhere, is not
 * found; what is a link to nowhere is. */
static void names_are_literal(void **state)
{
    (void)state;
    glob_t found;
    char folder[] = "base-names-XXXXXX";
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    for (size_t i = 0; i < 4; i++) {
        static const char *const names[] = {"a[1]*?\\", "a1b", "a[1]", "away"};
        char path[32];
        if (i < 3) assert_int_equal(mkdir(names[i], 0700), 0);
        snprintf(path, sizeof path, "%s/f", names[i]);
        assert_int_equal(tr_files_like(path, ".*", &found), TR_OK);
        assert_int_equal(found.gl_pathc, 0);
        globfree(&found);
        if (i == 3) break;
        snprintf(path, sizeof path, "%s/f.h5", names[i]);
        assert_false(tr_file_there(path));
        assert_int_equal(symlink("nowhere", path), 0);
        assert_true(tr_file_there(path));
        path[strlen(names[i]) + 2] = 0;
        assert_int_equal(tr_files_like(path, ".*", &found), TR_OK);
        assert_int_equal(found.gl_pathc, 1);
        assert_memory_equal(found.gl_pathv[0], path, strlen(path));
        globfree(&found);
    }
    assert_int_equal(tr_folder_own("a1b"), TR_OK);
    assert_int_equal(tr_folder_own("away"), TR_OK);
    assert_int_equal(symlink("a1b", "link"), 0);
    assert_int_equal(tr_folder_own("link"), TR_USAGE);
    assert_non_null(strstr(tr_last_error()->text, "link: is a link, expected a folder"));
    assert_int_equal(chdir(".."), 0);
    assert_int_equal(system("rm -r base-names-*"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(philox_streams_differ),
        cmocka_unit_test(normals_have_the_moments),
        cmocka_unit_test(permutation_is_one),
        cmocka_unit_test(memory_is_counted),
        cmocka_unit_test(grown_by_one),
        cmocka_unit_test(large_blocks_ask_for_huge_pages),
        cmocka_unit_test(ended_processes_are_gone),
        cmocka_unit_test(nth_allocation_fails),
        cmocka_unit_test(bf16_rounds_to_even),
        cmocka_unit_test(f16_rounds_to_even),
        cmocka_unit_test(texts),
        cmocka_unit_test(text_is_visible),
        cmocka_unit_test(cells),
        cmocka_unit_test(texts_are_whole_or_absent),
        cmocka_unit_test(names_are_literal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
