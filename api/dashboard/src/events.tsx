// What Kubernetes noted about a resource and its pods.
import type { Schemas } from "./api";
import { useNow, usePolled } from "./live";
import { ago } from "./model";
import { Empty, Panel, Table, Told } from "./ui";

const AGAIN_MS = 5000; // events have no stream, and none of them is urgent

export function Events({ path }: { path: string }) {
  const now = useNow();
  const events = usePolled<Schemas["EventNotes"]>(`${path}/events`, AGAIN_MS);
  return (
    <Panel title="Events" half>
      <Told query={events} what="the events">
        {({ items }) =>
          items.length === 0 ? (
            <Empty>Nothing was noted within the time for which the cluster keeps events, by default an hour.</Empty>
          ) : (
            <Table caption="Events" head={["Seen", "About", "Type", "Reason", "#Times", "In words"]}>
              {items.map((each, number) => (
                <tr key={`${each.at}${each.about}${each.reason}${number}`}>
                  <td className="nowrap">{ago(each.at, now)}</td>
                  <th scope="row">{each.about}</th>
                  <td className={each.type === "Warning" ? "bad" : undefined}>{each.type}</td>
                  <td>{each.reason}</td>
                  <td className="number">{each.count}</td>
                  <td className="quiet">{each.message}</td>
                </tr>
              ))}
            </Table>
          )
        }
      </Told>
    </Panel>
  );
}
