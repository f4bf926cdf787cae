import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { type Said, startNameServer } from '../name-server.ts';
import type { Played } from '../vendors.ts';
import {
  addressOf,
  type Mailbox,
  type Naming,
  nameKey,
  PRACTICES,
  type Trap,
} from './set.ts';

// The external servers for the traps, over sockets: name servers, vendors, and a verifier with
// their own wire formats. RocketReach knows people by NPI. Hunter repeats the name in the request.

/** A public address that no test connects to. */
const PUBLIC = '52.96.165.8';
const DAY_MS = 86_400_000;
const FAST = { rates: ['10000/1s'] };

/**
 * Starts the servers.
 * @returns the environment and the sources file that an operator would set to use them
 */
export async function startWorld(traps: readonly Trap[], hasVerifier: boolean) {
  const known = indexOf(traps);
  await using opened = new AsyncDisposableStack();
  const server = createServer((request, response) => {
    reply(known, request).then(
      ({ status, body }) => {
        response
          .writeHead(status, { 'content-type': 'application/json' })
          .end(JSON.stringify(body));
      },
      () => response.destroy(),
    );
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  opened.defer(() => {
    server.closeAllConnections();
    server.close();
  });
  const dns = await startNameServer(createZone(traps));
  opened.defer(() => dns.close());
  const { port } = server.address() as AddressInfo;
  const order = Object.keys(VENDORS);
  const verifiers = hasVerifier ? ['reacher'] : [];
  const access = [...order, ...verifiers].flatMap((id) => [
    [`${id.toUpperCase()}_URL`, `http://127.0.0.1:${port}/${id}`],
    [`${id.toUpperCase()}_API_KEY`, 'key-of-the-traps'],
  ]);
  const running = opened.move();
  return {
    environment: { ...Object.fromEntries(access), DNS_SERVERS: dns.address },
    sources: {
      order,
      vendors: Object.fromEntries(order.map((id) => [id, FAST])),
      verifiers: { order: verifiers, reacher: FAST },
    },
    close: () => running.disposeAsync(),
  };
}

/** Returns the DNS responses for domains of traps and their exchangers. */
function createZone(traps: readonly Trap[]): (name: string, type: string) => Said {
  const domains = new Map<string, Exclude<Trap['dns'], undefined>>();
  const hosts = new Map<string, readonly string[]>();
  for (const trap of traps) {
    const { dns } = trap;
    const domain = addressOf(trap).split('@')[1] ?? '';
    if (dns || !domains.has(domain))
      domains.set(domain, dns ?? { mx: [`mx.${domain}`], a: [PUBLIC] });
  }
  for (const entry of domains.values()) {
    if (entry === 'nxdomain') continue;
    for (const exchange of entry.mx)
      hosts.set(exchange, entry.hosts?.[exchange] ?? [PUBLIC]);
  }
  return (name, type) => {
    const entry = domains.get(name.toLowerCase());
    if (entry === 'nxdomain') return 'NXDOMAIN';
    const addresses = [...(entry?.a ?? []), ...(hosts.get(name.toLowerCase()) ?? [])];
    if (!entry && addresses.length === 0) return 'NXDOMAIN';
    return type === 'MX' ? (entry?.mx ?? []) : addresses;
  };
}

interface SourceRequest {
  readonly query: URLSearchParams;
  readonly body: Readonly<Record<string, unknown>>;
}

async function reply(known: Known, request: IncomingMessage): Promise<Played> {
  const { pathname, searchParams: query } = new URL(request.url ?? '/', 'http://traps');
  const source = SOURCES[pathname.split('/')[1] ?? ''];
  const sent = await text(request);
  const body = sent === '' ? {} : JSON.parse(sent);
  return (
    source?.(known, { query, body }) ?? {
      status: 404,
      body: { message: 'Nothing is served here.' },
    }
  );
}

type Source = (known: Known, request: SourceRequest) => Played;
/** One vendor's claim about one trap. */
type Vended = Exclude<Naming, { by: 'nppes' }>;

/** The traps by what a server is asked for. */
interface Known {
  readonly byNpi: ReadonlyMap<string, Trap>;
  readonly byName: ReadonlyMap<string, Trap>;
  readonly byEmail: ReadonlyMap<string, Trap>;
}

/** @throws {Error} if two traps have the same person or address */
function indexOf(traps: readonly Trap[]): Known {
  const byNpi = new Map(traps.map((trap) => [trap.npi, trap]));
  const byName = new Map(
    traps.map((trap) => [nameKey(trap.who.first, trap.who.last), trap]),
  );
  const byEmail = new Map(traps.map((trap) => [addressOf(trap), trap]));
  if (byName.size < traps.length || byEmail.size < traps.length) {
    throw new Error('Two traps have the same person or the same address. Change one.');
  }
  return { byNpi, byName, byEmail };
}

const states = new Map(PRACTICES.map(({ name, state }) => [name, state]));

function claimOf(
  vendor: string,
  trap: Trap | undefined,
): { readonly trap: Trap; readonly says: Vended } | null {
  const says = trap?.named.find((one) => one.by === vendor);
  return trap && says && says.by !== 'nppes' ? { trap, says } : null;
}

const ok = (body: unknown): Played => ({ status: 200, body });
const seenOn = ({ days }: Vended) =>
  days === undefined
    ? null
    : new Date(Date.now() - days * DAY_MS).toISOString().slice(0, 10);

/**
 * Vendors in the order of their calls. Their responses look like those recorded in
 * test/support/vendor-responses/.
 */
const VENDORS: Readonly<Record<string, Source>> = {
  rocketreach({ byNpi }, { query }) {
    const found = claimOf('rocketreach', byNpi.get(query.get('npi_number') ?? ''));
    if (!found) return { status: 404, body: { message: 'no profile' } };
    const { trap, says } = found;
    const { first, last } = trap.who;
    const words = { valid: 'valid', catch_all: 'accept-all', unknown: 'inconclusive' };
    const email = {
      ...{ email: trap.email, smtp_valid: words[says.says], type: says.type, grade: 'A' },
      last_validation_check: seenOn(says),
    };
    return ok({
      ...{
        id: Number(trap.npi),
        status: 'complete',
        name: says.name ?? `${first} ${last}`,
        emails: [email],
      },
      ...{
        region: states.get(trap.practice),
        country_code: 'US',
        npi_data: { npi_number: trap.npi },
      },
    });
  },

  hunter({ byName }, { query }) {
    const names = {
      first_name: query.get('first_name'),
      last_name: query.get('last_name'),
    };
    const found = claimOf('hunter', byName.get(nameKey(...Object.values(names))));
    const words = { valid: 'valid', catch_all: 'accept_all', unknown: 'unknown' };
    const verification = found
      ? { status: words[found.says.says], date: seenOn(found.says) }
      : null;
    return ok({
      data: {
        ...{ ...names, email: found?.trap.email ?? null, score: 90, verification },
        accept_all: found?.says.says === 'catch_all',
      },
    });
  },
};

/** Reacher's response for each kind of mailbox, as differences from that for a good one. */
const MAILBOXES: Readonly<
  Record<Mailbox, { is_reachable: string; misc?: object; smtp?: object }>
> = {
  valid: { is_reachable: 'safe' },
  catch_all: { is_reachable: 'risky', smtp: { is_catch_all: true } },
  role: { is_reachable: 'risky', misc: { is_role_account: true } },
  full: { is_reachable: 'risky', smtp: { has_full_inbox: true } },
  disposable: { is_reachable: 'risky', misc: { is_disposable: true } },
  invalid: { is_reachable: 'invalid', smtp: { is_deliverable: false } },
  disabled: {
    is_reachable: 'invalid',
    smtp: { is_deliverable: false, is_disabled: true },
  },
  unknown: {
    is_reachable: 'unknown',
    smtp: { error: { type: 'IOError', message: 'io: incomplete' } },
  },
};

const reacher: Source = ({ byEmail }, { body }) => {
  const email = String(body.to_email);
  const { is_reachable, misc, smtp } =
    MAILBOXES[byEmail.get(email.toLowerCase())?.verifier ?? 'unknown'];
  return ok({
    ...{ input: email, is_reachable, mx: { accepts_mail: true, records: [] } },
    misc: { is_disposable: false, is_role_account: false, is_b2c: false, ...misc },
    smtp: {
      ...{ can_connect_smtp: true, has_full_inbox: false, is_catch_all: false },
      ...{ is_deliverable: true, is_disabled: false, ...smtp },
    },
  });
};

const SOURCES: Readonly<Record<string, Source>> = { ...VENDORS, reacher };
