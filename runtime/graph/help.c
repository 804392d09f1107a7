/* What is told of layers, from the tables that read them: the reference page, a JSON schema. */
#include "runtime/graph/maker.h"

/* The keys that layers like `type` have beside those of every layer, under a title. */
static void shared_keys(const tr_op_def *type, const char *title, FILE *to)
{
    const tr_op_def none = {0};
    tr_field fields[TR_LAYER_FIELDS], every[TR_LAYER_FIELDS];
    size_t n = 0;
    tr_type_fields(type, fields);
    tr_type_fields(&none, every);
    while (every[n].key) n++;
    fprintf(to, "\n## %s\n", title);
    tr_fields_help(type->learned || type->tied ? fields + n : fields, NULL, to);
}

static void help_layer(const tr_op_def *type, FILE *to)
{
    if (type->fields && type->fields->key)
        tr_fields_help(type->fields, type->name, to);
    else
        fprintf(to, "\n## `%s`\n", type->name);
    fprintf(to, "\n%s", type->doc);
    if (type->learned || type->tied)
        fprintf(to, " Also the keys of layers with %s%s%s.", type->learned ? "parameters" : "",
                type->learned && type->tied ? " and with " : "", type->tied ? "a weight" : "");
    fprintf(to, "\n\n    - %s\n", type->example ? type->example : type->name);
}

void tr_layers_help(FILE *to)
{
    fputs(
        "\n# Layers\n\nEach entry of `model.layers` is a name or a map of one name to its options: "
        "`relu`, `linear: {out: 10}`. Several inputs (`add`, `concat`) are named in `from`.\n",
        to);
    shared_keys(&(tr_op_def){0}, "Keys of every layer", to);
    shared_keys(&(tr_op_def){.learned = true}, "Keys of layers with parameters", to);
    shared_keys(&(tr_op_def){.tied = true}, "Keys of layers with a weight", to);
    for (size_t i = 0; i < tr_type_count(); i++) help_layer(tr_type_at(i), to);
}

/* Does the layer type need options? */
static bool needs_options(const tr_field *fields)
{
    for (const tr_field *f = fields; f->key; f++)
        if (!f->dflt) return true;
    return false;
}

void tr_layers_schema(FILE *to)
{
    fputs(",", to);
    for (size_t i = 0; i < tr_type_count(); i++) {
        tr_field fields[TR_LAYER_FIELDS];
        tr_type_fields(tr_type_at(i), fields);
        fprintf(to, "\n\"%s\":{\"description\":", tr_type_at(i)->name);
        tr_schema_text(tr_type_at(i)->doc, to);
        fprintf(to, ",\"anyOf\":[%s", needs_options(fields) ? "" : "{\"type\":\"null\"},");
        tr_fields_schema(fields, true, to);
        fputs("]},", to);
    }
    /* what a config defines is one more name */
    fputs("\n\"layers\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"anyOf\":[{\"type\":"
          "\"string\","
          "\"minLength\":1},{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":1,"
          "\"properties\":{",
          to);
    for (size_t i = 0; i < tr_type_count(); i++)
        fprintf(to, "%s\"%s\":{\"$ref\":\"#/$defs/%s\"}", i ? "," : "", tr_type_at(i)->name,
                tr_type_at(i)->name);
    fputs("}}]}},\n\"words\":{\"items\":{\"anyOf\":[{\"enum\":[", to);
    bool first = true;
    for (size_t i = 0; i < tr_type_count(); i++) {
        tr_field fields[TR_LAYER_FIELDS];
        tr_type_fields(tr_type_at(i), fields);
        if (needs_options(fields)) continue;
        fprintf(to, "%s\"%s\"", first ? "" : ",", tr_type_at(i)->name);
        first = false;
    }
    fputs("]},{\"type\":\"object\",\"propertyNames\":{\"enum\":[", to);
    for (size_t i = 0; i < tr_type_count(); i++)
        fprintf(to, "%s\"%s\"", i ? "," : "", tr_type_at(i)->name);
    fputs("]}}]}}},\n\"if\":{\"not\":{\"properties\":{\"model\":{\"required\":[\"define\"]}}}},"
          "\"then\":{\"properties\":{\"model\":{\"properties\":{\"layers\":{\"$ref\":\"#/$defs/"
          "words\"}}}}}\n",
          to);
}
