// What the control plane tells: streams of events, and answers that are asked for again. All of it recovers by itself.
import { keepPreviousData, type QueryClient, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { type ApiError, type Connection, follow, get, type StreamEvent } from "./api";
import type { KindList, Resource } from "./model";

const KEY = ["resources"];
const FAULT_SHOWN_MS = 3000; // at least, of a stream that comes back at once

export interface Live {
  state: Connection;
  /** Why the stream is not live, or what it says that went wrong. */
  problem: ApiError | Error | null;
}

/** Takes the events of a stream, and puts what they say on the page at most once per frame. */
interface Reader {
  /** The stream begins: anew, with everything, or behind the last event that has an id. */
  begin?: (anew: boolean) => void;
  /** Returns whether the page changes; may throw what the stream says that went wrong. */
  take: (event: StreamEvent) => boolean;
  publish: () => void;
}

/** Follow a stream while the component is mounted and seen. `make` runs once per path.
 *
 * A browser has six connections to a server of HTTP/1.1, and a stream takes one: hidden tabs leave theirs to the others.
 */
export function useFollow(path: string, make: () => Reader): Live {
  const [live, setLive] = useState<Live>(NOT_YET);
  useEffect(() => {
    setLive(NOT_YET);
    const reader = make();
    const at = { last: "" };
    let stop: AbortController | undefined;
    let frame = 0;
    let calm: ReturnType<typeof setTimeout> | undefined;
    let faulty = false;
    const well = () => {
      faulty = false;
      setLive((before) => (before.problem ? { ...before, problem: null } : before));
    };
    const publish = () => {
      frame = 0;
      reader.publish();
    };
    const event = (message: StreamEvent) => {
      try {
        if (reader.take(message)) frame ||= requestAnimationFrame(publish);
        if (faulty) well();
      } catch (error) {
        faulty = true;
        setLive((before) => ({ ...before, problem: error instanceof Error ? error : new Error(String(error)) }));
      }
    };
    const state = (now: Connection, why?: ApiError) => {
      clearTimeout(calm);
      if (now === "live" && faulty) calm = setTimeout(well, FAULT_SHOWN_MS);
      setLive((before) => ({ state: now, problem: why ?? (faulty ? before.problem : null) }));
    };
    const look = () => {
      if (document.hidden) {
        stop?.abort();
        stop = undefined;
      } else if (!stop) {
        stop = new AbortController();
        void follow(path, { begin: (anew) => reader.begin?.(anew), event, state }, at, stop.signal);
      }
    };
    look();
    document.addEventListener("visibilitychange", look);
    return () => {
      document.removeEventListener("visibilitychange", look);
      stop?.abort();
      clearTimeout(calm);
      cancelAnimationFrame(frame);
    };
    // `make` is new with each render; its stream is not.
  }, [path]);
  return live;
}

const NOT_YET: Live = { state: "connecting", problem: null };

/** Follow the resources, and keep them in TanStack Query's cache, the only store. */
export function useLive(client: QueryClient, path: string): Live {
  return useFollow(path, () => {
    const lists = new Map<string, { kind: string; items: Map<string, Resource> }>();
    const built = new Map<string, KindList>(); // those that did not change stay the same objects
    client.removeQueries({ queryKey: KEY });
    return {
      take({ event, data }) {
        const { plural, kind, items, object } = JSON.parse(data) as Message;
        if (event === "snapshot") lists.set(plural, { kind, items: new Map(items.map((each) => [each.metadata.uid, each])) });
        else if (event === "deleted") lists.get(plural)?.items.delete(object.metadata.uid);
        else lists.get(plural)?.items.set(object.metadata.uid, object);
        built.delete(plural);
        return true;
      },
      publish() {
        for (const [plural, { kind, items }] of lists)
          if (!built.has(plural)) built.set(plural, { plural, kind, items: inOrder([...items.values()]) });
        client.setQueryData(KEY, [...lists.keys()].sort().map((plural) => built.get(plural))); // they came in any order
      },
    };
  });
}

interface Message {
  plural: string;
  kind: string;
  items: Resource[];
  object: Resource;
}

const place = (resource: Resource) => `${resource.metadata.namespace}/${resource.metadata.name}`;

/** By namespace and name. */
function inOrder(items: Resource[]): Resource[] {
  const keyed = items.map((each) => ({ at: place(each), each }));
  keyed.sort((a, b) => (a.at < b.at ? -1 : 1));
  return keyed.map(({ each }) => each);
}

export function useResources(): KindList[] | undefined {
  return useQuery<KindList[]>({ queryKey: KEY, enabled: false, staleTime: Infinity, gcTime: Infinity }).data;
}

export interface Stream<T> extends Live {
  data: T | undefined;
}

/** The newest event of that name of a stream. What was told last stays while it is lost. */
export function useStream<T>(path: string, event: string): Stream<T> {
  const [data, setData] = useState<T>();
  const live = useFollow(path, () => {
    let newest: T | undefined;
    return {
      take(message) {
        if (message.event !== event) return false;
        newest = JSON.parse(message.data) as T;
        return true;
      },
      publish: () => setData(newest),
    };
  });
  return { ...live, data };
}

/** An answer that is asked for again and again; what was told last stays while the page cannot ask. */
export function usePolled<T>(path: string, everyMs: number) {
  return useQuery<unknown, Error, T>({
    queryKey: [path],
    queryFn: ({ signal }) => get<T>(path, signal),
    refetchInterval: everyMs,
    placeholderData: keepPreviousData,
  });
}

/** The time, each second, for what counts from a moment. */
export function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
