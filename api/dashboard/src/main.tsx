import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { type ReactNode, StrictMode, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { ApiError, inNamespace, isFinal, keepNamespace, keptNamespace, setToken, takeToken } from "./api";
import { useLive } from "./live";
import { Overview } from "./overview";
import { ResourcePage } from "./resource";
import "./style.css";
import { TracePage, Traces } from "./traces";
import { CONNECTION } from "./ui";

const client = new QueryClient({
  defaultOptions: {
    queries: { retry: (count, error) => !isFinal(error) && count < 2, networkMode: "always" }, // a platform of this
    mutations: { networkMode: "always" }, // machine answers without a network
  },
});

function useRoute(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const change = () => {
      setRoute(read());
      window.scrollTo(0, 0);
    };
    window.addEventListener("hashchange", change);
    return () => window.removeEventListener("hashchange", change);
  }, []);
  return route;
}

function View({ route, namespace }: { route: string[]; namespace: string }) {
  const [first, second, third] = route;
  if (first === "traces") return second ? <TracePage key={second} id={second} /> : <Traces namespace={namespace} />;
  if (first && second && third) return <ResourcePage key={route.join()} plural={first} namespace={second} name={third} />;
  return <Overview namespace={namespace} />;
}

function Page({ leave }: { leave: (why: string) => void }) {
  const route = useRoute();
  const [namespace, setNamespace] = useState(keptNamespace);
  const [choosing, setChoosing] = useState(false);
  const { state, problem } = useLive(client, `/resources?${new URLSearchParams(inNamespace(namespace))}`);
  const mayNot = state === "refused" && problem instanceof ApiError && problem.status === 403;
  useEffect(() => {
    if (state === "refused" && !mayNot) leave(problem?.message ?? "The token is not valid.");
  }, [state, mayNot, problem, leave]);
  const choose = (wanted: string) => {
    keepNamespace(wanted);
    setNamespace(wanted);
    setChoosing(false);
  };
  return (
    <>
      <a className="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        Skip to the content
      </a>
      <nav aria-label="Views">
        <a className="brand" href="#/">
          Pavane
        </a>
        <a href="#/" aria-current={route[0] === "traces" ? undefined : "page"}>
          Resources
        </a>
        <a href="#/traces" aria-current={route[0] === "traces" ? "page" : undefined}>
          Traces
        </a>
        <a href="/docs">REST API</a>
        <span className={`connection ${state}`} role="status">
          {CONNECTION[state]}
        </span>
        {namespace && !mayNot && <button onClick={() => setChoosing(!choosing)}>Namespace {namespace}</button>}
        <button onClick={() => leave("")}>Sign out</button>
      </nav>
      <main id="main" tabIndex={-1} className={state === "lost" ? "stale" : ""}>
        {choosing || mayNot ? (
          <ChooseNamespace why={mayNot ? problem.message : ""} now={namespace} choose={choose} />
        ) : (
          <View route={route} namespace={namespace} />
        )}
      </main>
    </>
  );
}

interface Question {
  title: string;
  /** Why it is asked. */
  why: string;
  label: string;
  /** What is typed is not shown. */
  secret?: boolean;
  now?: string;
  button: string;
  answer: (text: string) => void;
  children: ReactNode;
}

function Ask({ title, why, label, secret = false, now = "", button, answer, children }: Question) {
  const [typed, setTyped] = useState(now);
  return (
    <div className="ask">
      <h1>{title}</h1>
      {why && (
        <p className="failure" role="alert">
          {why}
        </p>
      )}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          answer(typed.trim());
        }}
      >
        <label htmlFor="asked">{label}</label>
        <input
          id="asked"
          type={secret ? "password" : "text"}
          autoComplete="off"
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
        <button className="primary">{button}</button>
      </form>
      <p className="quiet">{children}</p>
    </div>
  );
}

/** Who may see resources in some namespaces only cannot be shown all, and the cluster does not tell which ones these are. */
function ChooseNamespace({ why, now, choose }: { why: string; now: string; choose: (namespace: string) => void }) {
  return (
    <Ask title="Which namespace?" why={why} label="Namespace" now={now} button="Show" answer={choose}>
      The page shows what is in it. Without a name it shows all namespaces, to those who may see all.
    </Ask>
  );
}

function Login({ why, enter }: { why: string; enter: (token: string) => void }) {
  return (
    <main className="login">
      <Ask title="Pavane" why={why} label="Token of the cluster" secret button="Sign in" answer={(token) => token && enter(token)}>
        On a local cluster <code>pavane dashboard</code> prints a link that signs you in. Elsewhere make a token with{" "}
        <code>kubectl create token NAME --audience pavane-api</code>. It may do here what it may do with kubectl.
      </Ask>
    </main>
  );
}

function App() {
  const [token, setCurrent] = useState(takeToken);
  const [why, setWhy] = useState("");
  const [leave] = useState(() => (reason: string) => {
    setToken(null);
    keepNamespace("");
    client.clear();
    setWhy(reason);
    setCurrent(null);
  });
  if (!token)
    return (
      <Login
        why={why}
        enter={(given) => {
          setToken(given);
          setCurrent(given);
        }}
      />
    );
  return <Page leave={leave} />;
}

createRoot(document.getElementById("root") as HTMLElement).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <App />
    </QueryClientProvider>
  </StrictMode>,
);
