"""Chrome traces, as Perfetto reads them."""
import json


def check_trace(case, path, ranks):
    """What Perfetto asks of a Chrome trace; returns its events that have a time."""
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    named = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    case.assertEqual(named, set(range(ranks)))
    timed, open_ids, ends = [], {}, {}
    for e in sorted(events, key=lambda e: (e.get("ts", 0), -e.get("dur", 0))):
        case.assertIn(e["ph"], "MXbe")
        case.assertIsInstance(e["name"], str)
        if e["ph"] == "M":
            continue
        case.assertGreaterEqual(e["ts"], 0)
        timed.append(e)
        if e["ph"] == "X":  # on one track they follow each other, or lie within
            case.assertGreaterEqual(e["dur"], 0)
            stack = ends.setdefault((e["pid"], e["tid"]), [])
            while stack and stack[-1] <= e["ts"] + 1e-2:
                stack.pop()
            case.assertTrue(not stack or e["ts"] + e["dur"] <= stack[-1] + 1e-2, e)
            stack.append(e["ts"] + e["dur"])
        elif e["ph"] == "b":
            open_ids[e["id"]] = e["ts"]
        else:
            case.assertLessEqual(open_ids.pop(e["id"]), e["ts"])
    case.assertEqual(open_ids, {})
    return timed
