"""All commands: where each is, and an example of it for its help and for docs/cli.md; a test parses them all."""

from collections.abc import Mapping
from typing import NamedTuple

LOCAL, RESOURCES, DATA, CONTAINERS = "Local cluster", "Resources", "Data and traces", "In containers, not for the shell"


class Branch(NamedTuple):
    """A group; its commands begin with its words."""

    help: str
    extra: str = "local"
    """The extra that its commands need; ``local`` has them all."""


class Command(NamedTuple):
    """A command of its own."""

    place: str
    """``module:function`` below ``pavane_cli.commands``."""
    example: str | None = None
    """The words behind those of the command; None for what no user types."""
    extra: str | None = None
    """The extra that it needs, if not that of its group."""


Table = Mapping[str, Mapping[str, Branch | Command]]
"""Headings of the help → words behind ``pavane`` → what they lead to, in the order of the help."""

_PEER = "--peers tcp://127.0.0.1:8047 --secret-file secret"

COMMANDS: dict[str, dict[str, Branch | Command]] = {
    LOCAL: {
        "up": Command("local:up", "--detach examples/quickstart.yaml"),
        "down": Command("local:down", ""),
        "ps": Command("local:ps", ""),
        "logs": Command("local:logs", "quickstart-server-g1-0 --follow"),
        "kill": Command("local:kill", "quickstart-server-g1-0"),
        "pause": Command("local:pause", "quickstart-server-g1-0"),
        "unpause": Command("local:unpause", "quickstart-server-g1-0"),
        "demo": Command("demo:demo", "examples/platform.yaml"),
    },
    RESOURCES: {
        "apply": Command("resources:apply", "-f examples/quickstart.yaml --wait"),
        "diff": Command("resources:diff", "-f examples/quickstart.yaml"),
        "delete": Command("resources:delete", "raft/quickstart --wait"),
        "get": Command("resources:get", "raft,swim -o wide"),
        "describe": Command("resources:describe", "raft/quickstart"),
        "status": Command("status:status", ""),
        "watch": Command("resources:watch", "raft"),
        "dashboard": Command("dashboard:dashboard", ""),
        "tree": Command("tree:tree", "raft/quickstart"),
        "rollout": Branch("Watch a rollout and decide about it."),
        "rollout status": Command("rollout:status", "raft/quickstart --watch"),
        "rollout promote": Command("rollout:promote", "raft/quickstart"),
        "rollout pause": Command("rollout:pause", "raft/quickstart"),
        "rollout resume": Command("rollout:resume", "raft/quickstart"),
        "rollout abort": Command("rollout:abort", "raft/quickstart"),
        "rollout retry": Command("rollout:retry", "raft/quickstart"),
        "rollout force-promote": Command("rollout:force_promote", "raft/quickstart --yes"),
        "rollout restart": Command("rollout:restart", "raft/quickstart --wait"),
        "rollout repair": Command("rollout:repair", "raft/quickstart --wait"),
        "rollout undo": Command("rollout:undo", "raft/quickstart --to 3 --wait"),
        "rollout history": Command("rollout:history", "raft/quickstart"),
        "rollout diff": Command("rollout:diff", "raft/quickstart"),
        "scale": Command("scaling:scale", "raft/quickstart --replicas 5 --wait"),
        "suspend": Command("scaling:suspend", "raft/quickstart --wait"),
        "resume-resource": Command("scaling:resume_resource", "raft/quickstart --wait"),
        "why": Command("why:why", "raft/quickstart"),
        "connection": Command("connection:connection", "quickstart -o file"),
        "check": Command("check:check", ""),
    },
    DATA: {
        "raft": Branch("The log of a RaftCluster; a peer or a probe without a platform."),
        "raft info": Command("raft_log:info", "quickstart"),
        "raft append": Command("raft_log:append", "log hello"),
        "raft read": Command("raft_log:read", "log -o wide"),
        "raft subscribe": Command("raft_log:subscribe", "log"),
        "raft members": Command("raft_members:members", "quickstart"),
        "raft watch": Command("raft_members:watch", "quickstart"),
        "raft transfer": Command("raft_members:transfer", "quickstart quickstart-server-g1-1"),
        "raft config": Branch(
            "Change the members of a cluster without a platform; for a RaftCluster use `pavane scale`."
        ),
        "raft config add": Command("raft_members:add", f"{_PEER} 4=tcp://10.0.0.4:8047"),
        "raft config remove": Command("raft_members:remove", f"{_PEER} 4"),
        "raft config set": Command(
            "raft_members:set_members", f"{_PEER} 1=tcp://10.0.0.1:8047 2=tcp://10.0.0.2:8047 3=tcp://10.0.0.3:8047"
        ),
        "raft kv": Branch(
            "Keys of a RaftCluster with the state machine KeyValue or Tree: by its NAME, or with --peers."
        ),
        "raft kv get": Command("raft_kv:get", "quickstart greeting"),
        "raft kv put": Command("raft_kv:put", "quickstart greeting hello"),
        "raft kv del": Command("raft_kv:delete", "quickstart greeting"),
        "raft kv list": Command("raft_kv:list_keys", "quickstart app/ -o wide"),
        "raft kv watch": Command("raft_kv:watch", "quickstart app/"),
        "raft kv txn": Command("raft_kv:txn", "quickstart --if 'value(greeting) = hello' --then 'put greeting bye'"),
        "raft kv lease": Command("raft_kv:lease_command", "quickstart --ttl 10"),
        "raft kv lock": Command("raft_kv:lock", "quickstart jobs/backup -- ./backup.sh"),
        "raft kv export": Command("raft_kv:export", "quickstart keys.jsonl"),
        "raft kv import": Command("raft_kv:import_keys", "quickstart keys.jsonl"),
        "raft tree": Branch("Nodes of a RaftCluster with the state machine Tree: by its NAME, or with --peers."),
        "raft tree ls": Command("raft_tree:ls", "tree /workers"),
        "raft tree get": Command("raft_tree:get", "tree /workers"),
        "raft tree set": Command("raft_tree:set_node", "tree /workers data"),
        "raft tree create": Command("raft_tree:create", "tree /workers/w_ --sequential"),
        "raft tree rm": Command("raft_tree:rm", "tree /workers/w_0000000000"),
        "raft tree watch": Command("raft_tree:watch", "tree /workers"),
        "raft peer": Command(
            "raft_peer:peer", "--id 1 --data peer1 --peers 1=tcp://127.0.0.1:8047 --secret-file secret"
        ),
        "raft probe": Command("raft_probe:probe", "--seed tcp://quickstart:8047 --keys keys"),
        "raft backup": Command("raft_backup:backup", "backup --peers tcp://127.0.0.1:8047 --secret-file secret"),
        "raft backups": Command("raft_backup:backups", "file:///srv/backups/orders --keep 14 --yes", "services"),
        "raft restore": Command("raft_backup:restore", "backup peer1 --id 1 --members 1=tcp://10.0.0.1:8047"),
        "raft dump": Command("raft_offline:dump", "peer1"),
        "raft verify": Command("raft_offline:verify", "peer1"),
        "raft compact": Command("raft_offline:compact", "peer1"),
        "raft import-js": Command("raft_offline:import_js", "js-peer peer2 --id 2"),
        "raft export-js": Command("raft_offline:export_js", "peer1 js-peer2"),
        "raft repair": Command("raft_offline:repair", "peer1 --truncate-after 1200"),
        "raft recover": Command("raft_offline:recover", "peer1 --members 1=tcp://10.0.0.1:8047"),
        "swim": Branch("Membership of a SWIM group: run a member, and query one."),
        "swim member": Command(
            "swim_member:member", "--name web-1 --bind 0.0.0.0:7946 --seed 10.0.0.1:7946", "services"
        ),
        "swim members": Command("swim_members:members", "quickgroup"),
        "swim watch": Command("swim_control:watch", ""),
        "swim ping": Command("swim_control:ping", "10.0.0.2:7946"),
        "swim join": Command("swim_control:join", "10.0.0.2:7946"),
        "swim leave": Command("swim_control:leave", ""),
        "swim keys": Command("swim_control:keys", ""),
        "waltz": Branch("The log of a WaltzCluster: append, read and follow transactions."),
        "waltz adopt": Command("waltz_tools:adopt", "ledger --dry-run"),
        "waltz append": Command("waltz_log:append", "ledger paid -p 1"),
        "waltz backup": Command("waltz_backup:backup", "ledger backup --archive s3://logs/ledger-6ba7b810", "services"),
        "waltz backups": Command("waltz_backup:backups", "file:///srv/backups/ledger --keep 14 --yes", "services"),
        "waltz bench": Command("waltz_tools:bench", "ledger -p 1 --size 512"),
        "waltz consumers": Command("waltz_log:consumers", "ledger"),
        "waltz dump": Command("waltz_offline:dump", "storage --partition 1"),
        "waltz feed": Command("waltz_log:feed", "ledger -p 1 --from 0"),
        "waltz find": Command("waltz_find:find", "ledger --where '$.amount >= 100'"),
        "waltz get": Command("waltz_log:get", "ledger 12 -p 1"),
        "waltz hwm": Command("waltz_log:hwm", "ledger -p 1"),
        "waltz move": Command("waltz_find:move", "ledger -p 1 --consumer billing --to 12"),
        "waltz partitions": Command("waltz_log:partitions", "ledger"),
        "waltz restore": Command("waltz_restore:restore", "ledger --from s3://logs/ledger-6ba7b810", "services"),
        "waltz trim": Command("waltz_log:trim", "ledger -p 1 --before 100 --dry-run"),
        "waltz validate": Command("waltz_tools:validate", "ledger -p 1 --count 10000"),
        "waltz verify": Command("waltz_offline:verify", "storage"),
        "sql": Branch(
            "SQL over the log, kept up to date: check and run a script, query and follow its views.", "dataflow"
        ),
        "sql check": Command("sql_views:check", "revenue.sql"),
        "sql explain": Command("sql_views:explain", "revenue.sql"),
        "sql run": Command("sql_views:run_script", "ledger revenue.sql --ticks 2 -p 3"),
        "sql replica": Command("sql_replica:replica", "ledger --ticks 2 -p 3 --listen 127.0.0.1:7071"),
        "sql query": Command("sql_views:query", "compute/main 'SELECT * FROM revenue'"),
        "sql follow": Command("sql_views:follow", "ledger revenue -p 3"),
        "dataflow": Branch("Show the views of Dataflows.", "dataflow"),
        "dataflow list": Command("dataflow_views:listed", ""),
        "dataflow watch": Command("dataflow_views:watch", "revenue"),
        "dataflow bad-rows": Command("dataflow_views:bad_rows", "revenue"),
        "ambrosia": Branch("Immortals: applications that survive failures, with exactly-once calls."),
        "ambrosia run": Command("ambrosia_run:run", "accounts:Account --name alice"),
        "ambrosia call": Command("ambrosia_call:call", "alice deposit 10"),
        "ambrosia query": Command("ambrosia_call:query", "alice balance"),
        "ambrosia flows": Command("ambrosia_flows:flows", "alice --attribute customer=7"),
        "ambrosia flow": Command("ambrosia_flows:flow", "alice 12"),
        "ambrosia replay": Command("ambrosia_run:replay", "accounts:Account alice"),
        "ambrosia log": Command("ambrosia_log:log", "alice"),
        "ambrosia backup": Command("ambrosia_backup:backup", "alice backup"),
        "ambrosia backups": Command("ambrosia_backup:backups", "file:///srv/backups/alice --keep 14 --yes", "services"),
        "ambrosia verify": Command("ambrosia_backup:verify", "backup"),
        "ambrosia restore": Command("ambrosia_backup:restore", "backup --log /srv/immortals"),
        "ambrosia coordinator": Command("ambrosia_coordinator:coordinator", "--help"),
        "trace": Branch("Traces over all message paths."),
        "trace list": Command("trace:list_", "--errors"),
        "trace show": Command("trace:show", "7054c755e1ea6d039aa1e6d59c625027"),
    },
    CONTAINERS: {
        "operator": Command("processes:operator", None, "operator"),
        "api": Command("processes:api", None, "api"),
        "pod": Command("processes:pod", None, "services"),
        "helm": Branch("Hooks of the Helm chart (in a container)."),
        "helm pre-delete": Command("helm:pre_delete"),
        "helm test": Command("helm:try_out"),
    },
}
