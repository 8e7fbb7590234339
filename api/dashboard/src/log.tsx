// A WaltzCluster: who may write to which partition, who reads them, what stands in one of them as it comes, and an append.
import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, memo, useState } from "react";
import { append, remove, type Schemas } from "./api";
import { decode } from "./data";
import { Find, Move } from "./finding";
import { useFollow, usePolled } from "./live";
import { span } from "./model";
import { Confirm, Empty, Failure, Panel, Rows, Table, Told } from "./ui";

const AGAIN_MS = 2000; // partitions and consumers have no stream
const SHOWN_MAX = 50;

type Transaction = Schemas["LogTransaction"];
type Consumer = Schemas["LogConsumer"];

export function Waltz({ path }: { path: string }) {
  const [chosen, setChosen] = useState(0);
  const partitions = usePolled<Schemas["LogPartitions"]>(`${path}/partitions`, AGAIN_MS);
  const known = partitions.data?.items.find((each) => each.partition === chosen);
  return (
    <>
      <Panel title="Partitions">
        <Told query={partitions} what="the partitions">
          {({ items }) => (
            <Table caption="Partitions" head={["Partition", "Server", "Stage", "#Moved", "#High-water mark"]}>
              {items.map((each) => (
                <tr key={each.partition}>
                  <th scope="row">
                    <button aria-pressed={each.partition === chosen} onClick={() => setChosen(each.partition)}>
                      Partition {each.partition}
                    </button>
                  </th>
                  <td title={each.server ?? ""}>{each.server?.split(".")[0] ?? "▲ nobody may write"}</td>
                  <td>{each.stage ?? "–"}</td>
                  <td className="number">{each.generation}</td>
                  <td className="number">{each.highWaterMark ?? "no answer"}</td>
                </tr>
              ))}
            </Table>
          )}
        </Told>
      </Panel>
      <Consumers path={path} />
      {known?.highWaterMark != null && (
        <>
          <Find key={`${path}/${chosen}/search`} path={`${path}/partitions/${chosen}`} />
          <Feed key={`${path}/${chosen}`} path={`${path}/partitions/${chosen}`} from={known.highWaterMark + 1} />
        </>
      )}
    </>
  );
}

const CONSUMERS_HEAD = ["Consumer", "#Partition", "#Position", "#Behind", "#Behind for", "#Last seen", "Retention", "Who", "Actions"];

function Consumers({ path }: { path: string }) {
  const client = useQueryClient();
  const consumers = usePolled<Schemas["LogConsumers"]>(`${path}/consumers`, AGAIN_MS);
  const [leaving, setLeaving] = useState<string | null>(null);
  const [moving, setMoving] = useState<Consumer | null>(null);
  return (
    <Panel title="Consumers">
      <Told query={consumers} what="the consumers">
        {({ items, unanswered }) => (
          <>
            {unanswered.length > 0 && <p className="bad">Nobody answers for partition {unanswered.join(", ")}: who reads it is not known.</p>}
            {items.length === 0 && unanswered.length === 0 && (
              <Empty>Nobody keeps a position in this log, so retention waits for no reader.</Empty>
            )}
            {items.length > 0 && (
              <Table caption="Consumers" head={CONSUMERS_HEAD} rows={items.length}>
                <Rows
                  items={items}
                  row={(each) => (
                    <Reading
                      key={`${each.partition}/${each.name}`}
                      consumer={each}
                      move={() => setMoving(each)}
                      leave={() => setLeaving(each.name)}
                    />
                  )}
                />
              </Table>
            )}
          </>
        )}
      </Told>
      {moving !== null && <Move path={path} consumer={moving} onClose={() => setMoving(null)} />}
      {leaving !== null && (
        <Confirm
          label="Remove"
          what={leaving}
          danger
          act={async () => {
            await remove(`${path}/consumers/${encodeURIComponent(leaving)}`);
            await client.invalidateQueries({ queryKey: [`${path}/consumers`] });
          }}
          onClose={() => setLeaving(null)}
        >
          <p>{effectOfLeaving(leaving, consumers.data?.items ?? [])}</p>
        </Confirm>
      )}
    </Panel>
  );
}

function Reading({ consumer, move, leave }: { consumer: Consumer; move: () => void; leave: () => void }) {
  const { partition, name, position, lag, lagSeconds, idleSeconds, heldSeconds, stuck, who } = consumer;
  return (
    <tr>
      <th scope="row">{name}</th>
      <td className="number">{partition}</td>
      <td className="number">{position.toLocaleString()}</td>
      <td className="number">{lag.toLocaleString()}</td>
      <td className="number">{lag === 0 ? "–" : span(lagSeconds)}</td>
      <td className="number">{span(idleSeconds)} ago</td>
      <td className={stuck ? "bad nowrap" : "nowrap"}>
        {heldSeconds === null ? "does not wait" : `${stuck ? "▲ stuck: " : ""}waits for ${span(heldSeconds)}`}
      </td>
      <td className="quiet">{who}</td>
      <td className="nowrap">
        {!ownerOf(name) && (
          <button aria-label={`Move ${name} of partition ${partition}`} onClick={move}>
            Move
          </button>
        )}{" "}
        <button className="danger" aria-label={`Remove ${name}`} onClick={leave}>
          Remove
        </button>
      </td>
    </tr>
  );
}

const OWN: Record<string, string> = { "coordinator.": "Coordinator", "computecluster.": "ComputeCluster" };

/** The kind of what keeps this consumer, if the platform does. */
function ownerOf(name: string): string | undefined {
  const prefix = Object.keys(OWN).find((prefix) => name.startsWith(prefix));
  return prefix && OWN[prefix];
}

/** What a removal does, which is one for all partitions. */
function effectOfLeaving(name: string, consumers: Consumer[]): string {
  const partitions = consumers.filter((each) => each.name === name).map((each) => each.partition);
  const where = `${partitions.length === 1 ? "partition" : "partitions"} ${partitions.join(", ")}`;
  const forgotten = `Its position in ${where} is forgotten, and retention may give up what it has not read.`;
  const owner = ownerOf(name);
  if (!owner) return `${forgotten} If it comes back it is told so, and begins nowhere by itself.`;
  return `${forgotten} It belongs to a ${owner}, which may not be able to start again without that; where one is deleted its consumer goes by itself.`;
}

/** The last transactions of a partition, newest first, and each further one as it is committed. */
function Feed({ path, from }: { path: string; from: number }) {
  const [start] = useState(Math.max(0, from - SHOWN_MAX));
  const [items, setItems] = useState<Transaction[]>([]);
  const { state, problem } = useFollow(`${path}/transactions?watch=true&from=${start}`, () => {
    let arrived: Transaction[] = [];
    return {
      begin: (anew) => anew && setItems([]),
      take({ event, data }) {
        if (event === "error") throw new Error(data);
        if (event !== "transaction") return false;
        arrived.push(JSON.parse(data) as Transaction);
        if (arrived.length > SHOWN_MAX) arrived.shift();
        return true;
      },
      publish() {
        const fresh = arrived.reverse();
        arrived = [];
        setItems((before) => [...fresh, ...before].slice(0, SHOWN_MAX));
      },
    };
  });
  return (
    <Panel title={`Transactions of partition ${path.split("/").pop()}`} live={state} aside={<span className="quiet">newest first</span>}>
      <Append path={path} seen={items[0]?.transaction ?? from - 1} />
      {problem && <Failure error={problem} />}
      {items.length === 0 ? (
        <Empty>Nothing has been appended yet.</Empty>
      ) : (
        <Table caption="Transactions" head={["Transaction", "#Header", "Data"]}>
          {items.map((each) => (
            <Committed key={each.transaction} transaction={each} />
          ))}
        </Table>
      )}
    </Panel>
  );
}

const Committed = memo(function Committed({ transaction: { transaction, header, data } }: { transaction: Transaction }) {
  return (
    <tr>
      <th scope="row">{transaction}</th>
      <td className="number">{header}</td>
      <td className="value">{decode(data)}</td>
    </tr>
  );
});

function Append({ path, seen }: { path: string; seen: number }) {
  const [data, setData] = useState("");
  const [locks, setLocks] = useState("");
  const [said, setSaid] = useState<Error | string | null>(null);
  async function send(event: FormEvent) {
    event.preventDefault();
    const query = new URLSearchParams({ seen: String(seen) });
    for (const lock of locks.split(/[\s,]+/).filter(Boolean)) query.append("write", lock);
    try {
      const { transaction } = await append<Schemas["AppendedTransaction"]>(`${path}/transactions?${query}`, data);
      setSaid(`Committed as transaction ${transaction}.`);
      setData("");
    } catch (error) {
      setSaid(error instanceof Error ? error : new Error(String(error)));
    }
  }
  return (
    <form className="line" onSubmit={(event) => void send(event)}>
      <input required aria-label="Data" placeholder="Data" value={data} onChange={(event) => setData(event.target.value)} />
      <input
        aria-label="Write locks"
        placeholder="Write locks: account/7, …"
        value={locks}
        onChange={(event) => setLocks(event.target.value)}
      />
      <button className="primary">Append</button>
      <span role="status" className="quiet">
        {typeof said === "string" ? said : `counts as having seen ${seen}`}
      </span>
      {said instanceof Error && <Failure error={said} />}
    </form>
  );
}
