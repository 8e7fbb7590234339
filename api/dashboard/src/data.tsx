// What lies in a RaftCluster: its members, and its keys, its tree or its log.
import { useDeferredValue, useState } from "react";
import type { Schemas } from "./api";
import { usePolled } from "./live";
import type { Resource } from "./model";
import { Empty, Panel, Table, Told } from "./ui";

const AGAIN_MS = 2000; // these lists have no stream
const ENTRIES_SHOWN_MAX = 50;

type Members = Schemas["Members"];

export function Raft({ path, resource }: { path: string; resource: Resource }) {
  const members = usePolled<Members>(`${path}/members`, AGAIN_MS);
  const { leader, term, commitIndex } = resource.status ?? {};
  const facts = `leader ${leader ?? "none"} · term ${term ?? "–"} · commit index ${commitIndex ?? "–"}`;
  const machine = resource.spec["stateMachine"];
  return (
    <>
      <Panel title="Members" half aside={<span className="quiet">{facts}</span>}>
        <Told query={members} what="the members">
          {(data) => (
            <Table caption="Members" head={["Member", "Kind", "Role", "#Term", "#Last index", "#Applied", "#Lag"]}>
              {data.items.map((each) => (
                <tr key={each.id}>
                  <th scope="row">{each.id}</th>
                  <td>{each.kind}</td>
                  <td>{each.id === data.leader ? "★ leader" : (each.role ?? "no answer")}</td>
                  <td className="number">{each.term ?? "–"}</td>
                  <td className="number">{each.lastIndex ?? "–"}</td>
                  <td className="number">{each.appliedIndex ?? "–"}</td>
                  <td className="number">{each.lag ?? "–"}</td>
                </tr>
              ))}
            </Table>
          )}
        </Told>
      </Panel>
      {machine === "KeyValue" && <Keys path={path} />}
      {machine === "Tree" && <Tree path={path} />}
      {machine === "Broadcast" && <Log path={path} />}
    </>
  );
}

function Keys({ path }: { path: string }) {
  const [typed, setTyped] = useState("");
  const prefix = useDeferredValue(typed);
  const keys = usePolled<Schemas["KeyList"]>(`${path}/keys?${new URLSearchParams({ limit: "100", prefix })}`, AGAIN_MS);
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
    <Panel title="Keys" half aside={input}>
      <Told query={keys} what="the keys">
        {({ items, more }) => (
          <>
            {items.length === 0 && <Empty>{prefix ? `No key begins with “${prefix}”.` : "There is no key yet."}</Empty>}
            {items.length > 0 && (
              <Table caption="Keys" head={["Key", "Value", "#Revision", "#Version", "#Lease"]}>
                {items.map((each) => (
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
            {more && <p className="quiet">There are more; a longer prefix shows fewer.</p>}
          </>
        )}
      </Told>
    </Panel>
  );
}

/** One node of the tree, and its children by name; names are base64, for they may hold any bytes. */
function Tree({ path }: { path: string }) {
  const [names, setNames] = useState<string[]>([]);
  const at = `${path}/tree/${names.map((each) => percentEncoded(bytesOf(each))).join("/")}`;
  const node = usePolled<Schemas["NodeRead"]>(at, AGAIN_MS);
  const children = usePolled<Schemas["NodeRead"]>(`${at}?children=true`, AGAIN_MS);
  const way = (
    <span className="actions" role="group" aria-label="Path">
      {["", ...names].map((each, depth) => (
        <button key={depth} aria-current={depth === names.length ? "true" : undefined} onClick={() => setNames(names.slice(0, depth))}>
          {depth === 0 ? "/" : decode(each)}
        </button>
      ))}
    </span>
  );
  return (
    <Panel title="Tree" half aside={way}>
      <Told query={node} what="the node">
        {({ node: found }) =>
          found && (
            <p className="quiet">
              version {found.version} · revision {found.modRevision} · {found.children === 1 ? "1 child" : `${found.children} children`}
              {found.lease ? ` · lease ${found.lease}` : ""}
              {found.data && <code className="result">{decode(found.data)}</code>}
            </p>
          )
        }
      </Told>
      {children.data?.children?.length === 0 && <Empty>It has no children.</Empty>}
      <ul className="plain columns">
        {children.data?.children?.map((each) => (
          <li key={each}>
            <button onClick={() => setNames([...names, each])}>{decode(each)}</button>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

/** The last entries of a plain log, newest first. */
function Log({ path }: { path: string }) {
  const info = usePolled<Schemas["LogInfo"]>(`${path}/log`, AGAIN_MS);
  return (
    <Panel title="Log" half aside={<span className="quiet">{info.data && `entries ${info.data.firstIndex} to ${info.data.commitIndex}`}</span>}>
      <Told query={info} what="the log">
        {({ firstIndex, commitIndex }) => (
          <Entries path={path} after={Math.max(firstIndex - 1, commitIndex - ENTRIES_SHOWN_MAX)} />
        )}
      </Told>
    </Panel>
  );
}

function Entries({ path, after }: { path: string; after: number }) {
  const query = new URLSearchParams({ after: String(after), limit: String(ENTRIES_SHOWN_MAX) });
  const entries = usePolled<Schemas["LogEntries"]>(`${path}/log/entries?${query}`, AGAIN_MS);
  return (
    <Told query={entries} what="the entries">
      {({ items }) => (
        <Table caption="Log" head={["Index", "#Term", "Type", "Data"]}>
          {[...items].reverse().map((each) => (
            <tr key={each.index}>
              <th scope="row">{each.index}</th>
              <td className="number">{each.term}</td>
              <td>{each.type}</td>
              <td className="value">{each.type === "State" ? decode(each.data) : ""}</td>
            </tr>
          ))}
        </Table>
      )}
    </Told>
  );
}

function bytesOf(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64.replaceAll("-", "+").replaceAll("_", "/")), (char) => char.charCodeAt(0));
}

function percentEncoded(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");
}

/** The text that base64 holds, or where it is none the base64. */
export function decode(base64: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytesOf(base64));
  } catch {
    return `${base64} (base64)`;
  }
}
