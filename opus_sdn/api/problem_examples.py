"""One example of every problem, for the API document. What they say is what the controller says."""

from __future__ import annotations

from opus_sdn.intent.errors import Problem

EXAMPLES: dict[Problem, tuple[str, dict[str, object]]] = {
    Problem.INVALID_REQUEST: (
        "ranks[0].last_grant is false: should be a valid integer",
        {
            "errors": [
                {"field": "ranks[0].last_grant", "value": "false", "message": "should be a valid integer"}
            ],
            "error_count": 1,
        },
    ),
    Problem.MALFORMED_JSON: ("the body is not JSON: EOF while parsing an object at line 1 column 15", {}),
    Problem.BODY_TOO_LARGE: (
        "the body has 262145 bytes or more; the limit of this route is 262144 bytes",
        {"limit_bytes": 262144},
    ),
    Problem.NOT_FOUND: (
        "there is no rail 'rail9'; known rails: rail0, rail1",
        {"rail": "rail9"},
    ),
    Problem.METHOD_NOT_ALLOWED: ("PATCH is not possible on /api/v1/jobs; the Allow header lists what is", {}),
    Problem.UNKNOWN_JOB: ("there is no job 'llama-70b'; declare it first", {"job": "llama-70b"}),
    Problem.UNKNOWN_RANK: (
        "rank 8 is not a rank of job llama-70b, which has ranks 0 to 7",
        {"rank": 8},
    ),
    Problem.UNKNOWN_PLACE: (
        "rank 3 is placed on host 'gpu9' slot 0, which is not there: hosts are gpu0, gpu1",
        {"rank": 3, "host": "gpu9", "slot": 0},
    ),
    Problem.UNKNOWN_GROUP: ("group dp-0-4 of job llama-70b has not checked in", {"group": "dp-0-4"}),
    Problem.UNKNOWN_CONNECTION: (
        "connection 'dp-9' belongs to no checked-in group of job llama-70b; check the group in first",
        {"connection": "dp-9"},
    ),
    Problem.NOT_A_MEMBER: (
        "rank 2 takes no part in connection dp-0-4 (ranks [0, 4])",
        {"rank": 2, "connection": "dp-0-4"},
    ),
    Problem.PORTS_OVERLAP: (
        "rank 0 is placed on host gpu0 slot 0, whose ports job bert uses; a port belongs to one job",
        {"rank": 0, "host": "gpu0", "slot": 0, "job": "bert"},
    ),
    Problem.JOB_CONFLICT: (
        "job llama-70b with nonce 'a1' was declared with another placement; a change needs a fresh nonce",
        {"job": "llama-70b", "field": "placement"},
    ),
    Problem.GROUP_CONFLICT: (
        (
            "group dp-0-4 is known with ranks [0, 4] and ordinal 0, not [0, 2] and 0; "
            "another group needs another name"
        ),
        {"group": "dp-0-4"},
    ),
    Problem.STALE_INCARNATION: (
        "job llama-70b is at incarnation 3; incarnation 2 can do nothing",
        {"job": "llama-70b", "incarnation": 3},
    ),
    Problem.STALE_START: (
        "the request speaks to controller start 6; this is start 7",
        {"seen_start": 6, "start": 7},
    ),
    Problem.UNROUTABLE: (
        "the rails do not join hosts gpu0 and gpu1 for group tp-0-3 (ranks [0, 3])",
        {"connection": "tp-0-3"},
    ),
    Problem.RECEIVE_FROM_ANY: (
        (
            "connection pp-0-2:0-2 is a pair: source and destination must both name a rank; receiving from "
            "any source is not possible across hosts"
        ),
        {"field": "source"},
    ),
    Problem.RELEASE_NOT_HELD: (
        (
            "rank 0 releases operations 5 to 5 of dp-0-4, but has released 4 and been granted 5; release in "
            "order, and only what was granted"
        ),
        {"rank": 0, "connection": "dp-0-4", "n": 5, "released": 4, "granted": 5},
    ),
    Problem.LIMIT_EXCEEDED: (
        "rank 0 would have 4097 open arrivals and grants not acknowledged by last_grant; the limit is 4096",
        {"rank": 0, "limit": 4096},
    ),
    Problem.PRECONDITION_FAILED: (
        'If-Match is \'"1"\', but the fabric is at "2"; read it again and repeat the change on it',
        {"etag": '"2"'},
    ),
    Problem.PRECONDITION_REQUIRED: (
        'changing the fabric needs the If-Match header with the ETag of the fabric that was changed: "2"',
        {"etag": '"2"'},
    ),
    Problem.PORT_IN_USE: (
        (
            "job llama-70b runs, and its rank 3 uses port gpu3:0:0, which would be gone; end the job first, "
            "or leave what it uses as it is"
        ),
        {"job": "llama-70b", "rank": 3, "port": "gpu3:0:0"},
    ),
    Problem.PORT_DRAINED: (
        "port gpu0:0:0 is drained, by ann; undrain it first",
        {"port": "gpu0:0:0"},
    ),
    Problem.LOCKED: (
        (
            "port gpu0:0:0 carries traffic, held by rank 0 of job llama-70b (dp-0-4#5); wait until it is "
            "released, or say force"
        ),
        {"holders": [{"job": "llama-70b", "rank": 0, "connection": "dp-0-4", "n": 5, "no": 17}]},
    ),
    Problem.STALE_PLAN: (
        "plan 7-3 was made when switch ocs0 was at generation 12; it is at 13 now: plan again",
        {"plan": "7-3", "switch": "ocs0"},
    ),
    Problem.RETRY_BUDGET: (
        (
            "retry_budget: timeout 14 and retry 7 outlast a dark path of 0.537 s, but links of rail rail0 "
            "took up to 7 s to come up, and its grants do not wait for them; raise the timeout, or write "
            "carrier: required for the rail"
        ),
        {"rail": "rail0", "retry_budget_s": 0.537, "link_up_s": 7.0},
    ),
    Problem.EVENTS_COMPACTED: (
        "since is 12, but the oldest event kept is 5001; read the current state, then go on from newest",
        {"since": 12, "oldest": 5001, "newest": 9000},
    ),
    Problem.NOT_LEADER: (
        "another replica decides: http://127.0.0.1:8701 leads under start 7; send this there",
        {"leader": "http://127.0.0.1:8701", "start": 7},
    ),
    Problem.SWITCH_AWAY: (
        "switch ocs0 does not answer: no answer within 5 s",
        {"switch": "ocs0"},
    ),
    Problem.NOT_READY: (
        "the controller is reading its switches; ask again in a second",
        {"phase": "adopting"},
    ),
    Problem.OVERLOADED: ("too much waits to be written to the store; ask again in a second", {}),
    Problem.INTERNAL: (
        "the controller has a bug; its log has the details under request id 7-1f",
        {},
    ),
    Problem.DIVERGED: (
        (
            "rank 0 arrives at operation 6 of dp-0-4, but its next one is 5 (rank 4 is at 5); the members "
            "have issued different numbers of operations"
        ),
        {"rank": 0},
    ),
    Problem.RUN_DEVIATION: (
        (
            "rank 0 waits in operation 2 of pp:0-2[2>0] after 2 operations of the run [12, 15) of dp-0-1; "
            "ranks 1 have issued 3, which end only when rank 0 issues them too, and until then the run is in "
            "the way of what it waits for; let all members leave the run at the same operation, or train "
            "without a phase table"
        ),
        {"rank": 0},
    ),
    Problem.TAG_ORDER: (
        (
            "message 3 of pp-0-2:0-2[0>2]: the two ends name different tags (rank 0: 7, rank 2: 8); "
            "receives match in order"
        ),
        {},
    ),
    Problem.DEADLINE: (
        "operation 5 of dp-0-4 was not granted within 1620 s of its first arrival: rank 4 has not arrived",
        {},
    ),
    Problem.RANK_LOST: ("rank 4 died: signal 9", {"rank": 4}),
    Problem.OPERATION_FAILED: (
        "operation 5 of dp-0-4 failed on rank 0: connection closed by peer",
        {"rank": 0},
    ),
    Problem.ABORTED: ("rank 0 aborted the job: out of memory", {"rank": 0}),
    Problem.SUPERSEDED: ("a newer incarnation of job llama-70b was started", {}),
    Problem.CONTROLLER_RESTARTED: (
        "the controller was started anew while job llama-70b ran; declare it again with a fresh nonce",
        {},
    ),
}
