// What stands in a partition of a log, found by text, JSON and header; and another position for who reads it.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post, type Schemas } from "./api";
import { decode } from "./data";
import { Dialog, Empty, Failure, Panel, Table } from "./ui";

const FOUND_MAX = 50; // of one press of a button
const STEPS_MAX = 25; // requests of one press: up to 500,000 transactions

type Found = Schemas["FoundTransactions"];
type Moved = Schemas["MovedConsumer"];

interface Search {
  query: string;
  items: Found["items"];
  first: number;
  next: number;
  end: number;
}

/** Looks on from where `before` has come to, or from the beginning, until something is found or STEPS_MAX are over. */
async function look(path: string, query: string, before?: Search): Promise<Search> {
  let said = before;
  const enough = (before?.items.length ?? 0) + FOUND_MAX;
  for (let step = 0; step < STEPS_MAX; step++) {
    const parameters = new URLSearchParams(query);
    if (said) {
      parameters.set("from", String(said.next));
      parameters.set("before", String(said.end));
    }
    parameters.set("limit", String(enough - (said?.items.length ?? 0)));
    const found = await get<Found>(`${path}/search?${parameters}`);
    said = {
      query,
      items: [...(said?.items ?? []), ...found.items],
      first: said?.first ?? found.lookedFrom,
      next: found.nextFrom,
      end: found.end,
    };
    if (said.items.length >= enough || said.next >= said.end) return said;
  }
  return said!;
}

/** The search in a partition, which begins where the log does or at a number that is given. */
export function Find({ path }: { path: string }) {
  const [text, setText] = useState("");
  const [where, setWhere] = useState("");
  const [from, setFrom] = useState("");
  const run = useMutation({ mutationFn: ({ query, before }: { query: string; before?: Search }) => look(path, query, before) });
  function send(event: FormEvent) {
    event.preventDefault();
    const query = new URLSearchParams();
    if (text) query.set("text", text);
    if (where.trim()) query.set("where", where.trim());
    if (from) query.set("from", from);
    run.mutate({ query: query.toString() });
  }
  const said = run.data;
  return (
    <Panel title={`Search in partition ${path.split("/").pop()}`}>
      <form className="line" onSubmit={send}>
        <input aria-label="Text" placeholder="Text in the data" value={text} onChange={(event) => setText(event.target.value)} />
        <input
          aria-label="Condition on JSON"
          placeholder="JSON: $.items[*].price >= 100"
          value={where}
          onChange={(event) => setWhere(event.target.value)}
        />
        <input
          aria-label="From transaction"
          placeholder="From transaction"
          inputMode="numeric"
          pattern="[0-9]{1,18}"
          value={from}
          onChange={(event) => setFrom(event.target.value)}
        />
        <button className="primary" disabled={run.isPending}>
          Find
        </button>
        <span role="status" className="quiet">
          {run.isPending ? "looking …" : said && reached(said)}
        </span>
        {run.error && <Failure error={run.error} />}
      </form>
      {said && !run.error && (
        <>
          {said.items.length === 0 ? (
            <Empty>Nothing was found there.</Empty>
          ) : (
            <Table caption="Found transactions" head={["Transaction", "#Header", "Data"]}>
              {said.items.map((each) => (
                <tr key={each.transaction}>
                  <th scope="row">{each.transaction}</th>
                  <td className="number">{each.header}</td>
                  <td className="value">{decode(each.data)}</td>
                </tr>
              ))}
            </Table>
          )}
          {said.next < said.end && (
            <p className="empty">
              <button disabled={run.isPending} onClick={() => run.mutate({ query: said.query, before: said })}>
                Look further
              </button>
            </p>
          )}
        </>
      )}
    </Panel>
  );
}

function reached({ items, first, next, end }: Search): string {
  const left = next < end ? `, ${(end - next).toLocaleString()} left` : "";
  return `found ${items.length.toLocaleString()} of ${(next - first).toLocaleString()} transactions from ${first} on${left}`;
}

/** Moves a consumer of a partition: first asks what that means, then says so, then does it. */
export function Move({ path, consumer, onClose }: { path: string; consumer: Schemas["LogConsumer"]; onClose: () => void }) {
  const client = useQueryClient();
  const [to, setTo] = useState(String(consumer.position));
  const { name, partition } = consumer;
  const at = `${path}/partitions/${partition}/consumers/${encodeURIComponent(name)}/move`;
  const asked = useMutation({ mutationFn: (to: string) => post<Moved>(`${at}?to=${to}&dryRun=true`) });
  const done = useMutation({
    mutationFn: async (to: number) => {
      await post<Moved>(`${at}?to=${to}`);
      await client.invalidateQueries({ queryKey: [`${path}/consumers`] });
    },
  });
  const known = asked.data;
  return (
    <Dialog title={`Move ${name}?`} onClose={onClose}>
      <form
        className="line"
        onSubmit={(event) => {
          event.preventDefault();
          asked.mutate(to);
        }}
      >
        <input
          required
          aria-label="First transaction to read"
          inputMode="numeric"
          pattern="[0-9]{1,18}"
          value={to}
          onChange={(event) => {
            setTo(event.target.value);
            asked.reset();
          }}
        />
        <button disabled={asked.isPending}>What does it mean?</button>
      </form>
      {known && <p role="status">{meaning(known)}</p>}
      <p className="quiet">Stop who runs under its name first: it is told at its next commit, and begins there when it starts anew.</p>
      {(asked.error ?? done.error) && <Failure error={(asked.error ?? done.error)!} />}
      <div className="actions">
        <button onClick={onClose}>Cancel</button>
        <button
          className="danger primary"
          disabled={!known || done.isPending}
          onClick={() => known && done.mutate(known.position, { onSuccess: onClose })}
        >
          Move
        </button>
      </div>
    </Dialog>
  );
}

function meaning({ former, position }: Moved): string {
  const count = Math.abs(position - former);
  const some = `${count.toLocaleString()} transaction${count === 1 ? "" : "s"}`;
  if (position < former) return `It reads ${some} again, from ${position} to ${former - 1}.`;
  if (position > former) return `It never reads ${some}, from ${former} to ${position - 1}; retention may give them up.`;
  return "It begins where it was.";
}
