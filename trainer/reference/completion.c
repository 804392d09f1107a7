/* Completion for shells: commands and stages, their options, a config's keys, files. */
#include <string.h>

#include "trainer/command/commands.h"
#include "trainer/reference/reference.h"
#include "trainer/stages/stages.h"

/* The first `nbytes` of `usage` name the option s, n bytes long. */
static bool names(const char *usage, size_t nbytes, const char *s, size_t n)
{
    for (size_t i = 0; i + n < nbytes; i++)
        if (memcmp(usage + i, s, n) == 0 && strchr(" ]=\n", usage[i + n])) return true;
    return false;
}

/* The options that a usage's lines take, each once, with a space behind it: what stands before the
 * explanation, which two spaces or more set off. */
static void put_options(const char *usage, FILE *to)
{
    for (const char *line = usage, *end; *line; line = end + (*end != 0)) {
        end = strchrnul(line, '\n');
        const char *s = line + strspn(line, " "), *told = strstr(s, "  ");
        if (s - line > 10) continue; /* explains */
        if (!told || told > end) told = end;
        for (; s < told; s++) {
            if (*s != '-' || (s[-1] != ' ' && s[-1] != '[')) continue;
            const size_t n = strcspn(s, " ]=\n");
            if (!names(usage, (size_t)(s - usage), s, n) && strncmp(s, "-np", n) != 0)
                fprintf(to, "%.*s ", (int)n, s);
        }
    }
}

/* Keys as they are set on the command line: not those of maps and lists as wholes, nor a
 * layer's. */
static void put_keys(const char *reference, FILE *to)
{
    const char *end = strstr(reference, "\n# Layers");
    for (const char *s = reference; (s = strstr(s, "\n| `")) && s < end; s++) {
        const char *key = s + 4, *type = strstr(key, "` | ");
        if (!type || strncmp(type + 4, "a map of keys", 13) == 0) continue;
        if (strncmp(key, "pipeline.", 9) == 0) continue;
        fprintf(to, "%.*s= ", (int)(type - key), key);
    }
}

static void put_words(FILE *to)
{
    for (size_t i = 0; tr_command_at(i); i++) fprintf(to, "%s ", tr_command_at(i)->name);
    for (size_t i = 1; i < TR_STAGES; i++) fprintf(to, "%s ", tr_stages[i]->name);
}

/* A case of the shell's for each command, all stages, and a config. */
static void put_cases(FILE *to)
{
    for (size_t i = 0; tr_command_at(i); i++) {
        fprintf(to, "    %s) options='", tr_command_at(i)->name);
        put_options(tr_command_at(i)->usage, to);
        fputs("' ;;\n", to);
    }
    for (size_t i = 1; i < TR_STAGES; i++)
        fprintf(to, "%s%s", i > 1 ? "|" : "    ", tr_stages[i]->name);
    fputs(") options='", to);
    put_options(tr_command_usage("benchmark"), to);
    fputs("' ;;\n    *) options='", to);
    put_options(tr_command_usage(NULL), to);
    fputs("' ;;\n", to);
}

static void bash(const char *reference, FILE *to)
{
    fputs("# bash completion for trainer\n"
          "_trainer()\n{\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} options\n"
          "    local words='",
          to);
    put_words(to);
    fputs("'\n    local keys='", to);
    put_keys(reference, to);
    fputs("'\n    compopt -o default 2>/dev/null\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ] && [[ $word != -* ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$words\" -- \"$word\") $(compgen -f -- \"$word\"))\n"
          "        return\n    fi\n"
          "    case ${COMP_WORDS[1]} in\n",
          to);
    put_cases(to);
    fputs("    esac\n"
          "    case $word in\n"
          "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
          "    =*) COMPREPLY=($(compgen -f -- \"${word#=}\")) ;;\n"
          "    *)\n"
          "        COMPREPLY=($(compgen -W \"$keys\" -- \"$word\") $(compgen -f -- \"$word\"))\n"
          "        [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace 2>/dev/null\n"
          "        ;;\n"
          "    esac\n}\n"
          "complete -F _trainer trainer\n",
          to);
}

static void zsh(const char *reference, FILE *to)
{
    fputs("#compdef trainer\nlocal options\nlocal -a words keys\nwords=(", to);
    put_words(to);
    fputs(")\nkeys=(", to);
    put_keys(reference, to);
    fputs(")\n"
          "if (( CURRENT == 2 )); then\n"
          "    compadd -a words\n    _files\n    return\n"
          "fi\n"
          "case $words[2] in\n",
          to);
    put_cases(to);
    fputs("esac\n"
          "if [[ $PREFIX == -* ]]; then\n"
          "    compadd -- ${=options}\n"
          "else\n"
          "    compadd -S '' -a keys\n    _files\n"
          "fi\n",
          to);
}

static void fish(const char *reference, FILE *to)
{
    fputs("# fish completion for trainer\n"
          "complete -c trainer -n __fish_use_subcommand -a '",
          to);
    put_words(to);
    fputs("'\n", to);
    for (size_t i = 0; tr_command_at(i); i++) {
        fprintf(to, "complete -c trainer -n '__fish_seen_subcommand_from %s' -a '",
                tr_command_at(i)->name);
        put_options(tr_command_at(i)->usage, to);
        fputs("'\n", to);
    }
    fputs("complete -c trainer -n 'not __fish_use_subcommand' -a '", to);
    put_keys(reference, to);
    fputs("'\n", to);
}

tr_status tr_completion_write(const char *shell, FILE *to)
{
    tr_status st = TR_OK;
    char *reference = tr_text_of(tr_reference_write);
    TR_HAVE(reference);
    if (strcmp(shell, "bash") == 0)
        bash(reference, to);
    else if (strcmp(shell, "zsh") == 0)
        zsh(reference, to);
    else if (strcmp(shell, "fish") == 0)
        fish(reference, to);
    else
        st = TR_FAIL(TR_USAGE, "--completion %.100s: expected bash, zsh or fish", shell);
out:
    tr_free(reference);
    return st;
}
