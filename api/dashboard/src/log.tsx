// A WaltzCluster: who may write to which partition, what stands in one of them as it comes, and an append.
import { type FormEvent, memo, useState } from "react";
import { append, type Schemas } from "./api";
import { decode } from "./data";
import { useFollow, usePolled } from "./live";
import { Empty, Failure, Panel, Table, Told } from "./ui";

const AGAIN_MS = 2000; // partitions have no stream
const SHOWN_MAX = 50;

type Transaction = Schemas["LogTransaction"];

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
      {known?.highWaterMark != null && (
        <Feed key={`${path}/${chosen}`} path={`${path}/partitions/${chosen}`} from={known.highWaterMark + 1} />
      )}
    </>
  );
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
