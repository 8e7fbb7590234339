// What lies in a resource: members and keys of a RaftCluster, members of a SwimGroup.
import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useState } from "react";
import { get, type Schemas } from "./api";
import type { Resource } from "./model";
import { Empty, Failure, Loading, Panel, Table } from "./ui";

const AGAIN_MS = 2000; // these lists have no stream

type RaftMembers = Schemas["pavane_api__raftmembers__schemas__Members"];
type SwimMembers = Schemas["pavane_api__swimmembers__schemas__Members"];

export function Raft({ path, resource }: { path: string; resource: Resource }) {
  const members = useQuery({
    queryKey: [path, "members"],
    queryFn: ({ signal }) => get<RaftMembers>(`${path}/members`, signal),
    refetchInterval: AGAIN_MS,
  });
  const { leader, term, commitIndex } = resource.status ?? {};
  const facts = `leader ${leader ?? "none"} · term ${term ?? "–"} · commit index ${commitIndex ?? "–"}`;
  return (
    <>
      <Panel title="Members" aside={<span className="quiet">{facts}</span>}>
        {members.error && <Failure error={members.error} again={() => void members.refetch()} />}
        {members.isPending && <Loading what="the members" />}
        {members.data && (
          <Table caption="Members" head={["Member", "Kind", "Role", "#Term", "#Last index", "#Applied", "#Lag"]}>
            {members.data.items.map((each) => (
              <tr key={each.id}>
                <th scope="row">{each.id}</th>
                <td>{each.kind}</td>
                <td>{each.id === members.data.leader ? "★ leader" : (each.role ?? "no answer")}</td>
                <td className="number">{each.term ?? "–"}</td>
                <td className="number">{each.lastIndex ?? "–"}</td>
                <td className="number">{each.appliedIndex ?? "–"}</td>
                <td className="number">{each.lag ?? "–"}</td>
              </tr>
            ))}
          </Table>
        )}
      </Panel>
      {resource.spec["stateMachine"] === "KeyValue" && <Keys path={path} />}
    </>
  );
}

function Keys({ path }: { path: string }) {
  const [typed, setTyped] = useState("");
  const prefix = useDeferredValue(typed);
  const keys = useQuery({
    queryKey: [path, "keys", prefix],
    queryFn: ({ signal }) =>
      get<Schemas["KeyList"]>(`${path}/keys?limit=100&prefix=${encodeURIComponent(encode(prefix))}`, signal),
    refetchInterval: AGAIN_MS,
    placeholderData: (before) => before,
  });
  const input = (
    <input
      type="search"
      aria-label="Prefix of the keys"
      placeholder="Prefix"
      value={typed}
      onChange={(event) => setTyped(event.target.value)}
    />
  );
  return (
    <Panel title="Keys" aside={input}>
      {keys.error && <Failure error={keys.error} again={() => void keys.refetch()} />}
      {keys.isPending && <Loading what="the keys" />}
      {keys.data?.items.length === 0 && <Empty>No key begins with “{prefix}”.</Empty>}
      {keys.data && keys.data.items.length > 0 && (
        <Table caption="Keys" head={["Key", "Value", "#Revision", "#Version", "#Lease"]}>
          {keys.data.items.map((each) => (
            <tr key={each.key}>
              <th scope="row">{decode(each.key)}</th>
              <td className="value">{decode(each.value)}</td>
              <td className="number">{each.modRevision}</td>
              <td className="number">{each.version}</td>
              <td className="number">{each.lease || "–"}</td>
            </tr>
          ))}
        </Table>
      )}
      {keys.data?.more && <p className="quiet">There are more; a longer prefix shows fewer.</p>}
    </Panel>
  );
}

function encode(text: string): string {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}

export function decode(text: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(
      Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (char) => char.charCodeAt(0)),
    );
  } catch {
    return `${text} (base64)`;
  }
}

export function Swim({ path }: { path: string }) {
  const members = useQuery({
    queryKey: [path, "members"],
    queryFn: ({ signal }) => get<SwimMembers>(`${path}/members`, signal),
    refetchInterval: AGAIN_MS,
  });
  const facts = members.data ? `asked ${members.data.asked} · digest ${members.data.digest ?? "–"}` : "";
  return (
    <Panel title="Members" aside={<span className="quiet">{facts}</span>}>
      {members.error && <Failure error={members.error} again={() => void members.refetch()} />}
      {members.isPending && <Loading what="the members" />}
      {members.data && (
        <Table caption="Members" head={["Member", "State", "Stage", "#Generation", "#Incarnation", "Address"]}>
          {members.data.items.map((each) => (
            <tr key={each.id}>
              <th scope="row">{each.pod ?? each.id}</th>
              <td>{each.state}</td>
              <td>{each.stage}</td>
              <td className="number">{each.foreign ? "not ours" : each.rollout}</td>
              <td className="number">{each.incarnation}</td>
              <td>{each.address ?? "–"}</td>
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  );
}
