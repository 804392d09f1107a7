/* Sweeps: which settings to try, which of those tried are worth having, and where to look next.
 * Nothing here runs anything. All Local and pure: the same in, the same out. */
#ifndef TR_SWEEP_H
#define TR_SWEEP_H

#include "runtime/config/config.h"

/* ---- Spaces of settings ---------------------------------------------------------------------- */

/* One key of a config and the values that it may have. A setting on it is a number: of the values
 * where they can be counted (from 0), else the value itself. */
typedef struct {
    const tr_node *key; /* a scalar, the path; as an override's */
    const tr_node *at;  /* the list of choices, or the range, as written */
    size_t count;       /* of values; 0: any number from `from` to `to` */
    bool choices;       /* the values are at->values */
    double from, to, step;
    bool log, integer;
} tr_sweep_axis;

typedef struct {
    size_t count;
    tr_sweep_axis *axes; /* owned; the nodes are the document's */
} tr_sweep_space;

/* Of a map of keys to lists of values; with `ranges` also to {from: a, to: b, step: c, scale:
 * linear|log}. Ends that are written as integers make a range of integers. `what`: the map's name,
 * for errors, which are TR_CONFIG with the position. */
tr_status tr_sweep_space_read(const tr_node *map, const char *what, bool ranges,
                              tr_sweep_space *out);
void tr_sweep_space_free(tr_sweep_space *s);
/* How many points there are; SIZE_MAX: they cannot be counted, or are too many. */
size_t tr_sweep_space_size(const tr_sweep_space *s);
/* Point number `index` of the Cartesian product, the last axis fastest: point[k] is a setting of
 * axis k. */
void tr_sweep_space_at(const tr_sweep_space *s, size_t index, double *point);

/* A setting's value as a node: v->node, which points to `v` and the document. */
typedef struct {
    tr_node node;
    char text[32];
} tr_sweep_value;
void tr_sweep_axis_value(const tr_sweep_axis *a, double setting, tr_sweep_value *v);

/* The fields of a range, for the reference page. */
extern const tr_field tr_sweep_range_fields[];

/* ---- Fronts ---------------------------------------------------------------------------------- */

/* Which of n points no other one dominates: v[i * m + k] is to be small for each k; one point
 * dominates another where it is nowhere larger and somewhere smaller. Points that are equal are on
 * the front together. `in` (NULL: all) says which points count; those with a value that is not
 * finite do not. Sorted, then each against the front so far: O(n log n + n |front| m). */
tr_status tr_pareto_front(size_t n, size_t m, const double *v, const bool *in, bool *front);

/* ---- Search ---------------------------------------------------------------------------------- */

enum { TR_SEARCH_OBJECTIVES = 3 };

/* What came of a point. */
typedef struct {
    double objectives[TR_SEARCH_OBJECTIVES]; /* each to be small */
    double minimize;                         /* the one that is asked for */
    double violation; /* of what it is subject to; 0: it keeps to all of it */
    bool failed;      /* nothing else is known */
} tr_search_result;

/* The point to try after these n (points[i * axes + k]), none of which it is. *found false: there
 * is no other. The first 2 axes + 2 and then one in four are a low-discrepancy sample of the whole
 * space: Halton (Numerische Mathematik 2, 1960), shifted at random (Cranley and Patterson, SIAM J.
 * Numer. Anal. 13, 1976). The others are local moves from points that none dominates, as PAES does
 * (Knowles and Corne, Evolutionary Computation 8, 2000): every other time from the one with the
 * least `minimize`, else from the less crowded of two (NSGA-II: Deb et al., IEEE Trans. Evol.
 * Comput. 6, 2002, whose rule for bounds is taken, too: what keeps to them comes before what does
 * not, and that by its violation). Random numbers: Philox of the seed, n and the attempt. Nothing
 * depends on how many points there will be. */
tr_status tr_search_next(const tr_sweep_space *s, uint64_t seed, size_t n, const double *points,
                         const tr_search_result *results, double *next, bool *found);

#endif
