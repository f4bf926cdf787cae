import { register } from '@prometheus-io/client';
import test, { type ExecutionContext } from 'ava';
import { pino } from 'pino';
import { createNames } from '../../../activities/http/names.ts';
import {
  CONTROL_DOMAINS,
  createDnsControl,
} from '../../../activities/verification/dns-control.ts';
import { candidate, checkOf, inWords } from '../../support/checks.ts';
import { freshDatabase } from '../../support/database.ts';
import {
  type Said,
  sayThisMachine,
  startNameServerOf,
} from '../../support/name-server.ts';
import { spawnOperator } from '../../support/operator.ts';

// Tests that responses of lying name servers do not count as evidence against an address. The tests
// use sockets, as in production.

const { db, sql, url } = freshDatabase(test);
const OWN = 'ours.example.com';

type Say = (name: string, type: string) => Said;
const truth: Say = (name, type) =>
  name.endsWith('clinic.com') ? 'NXDOMAIN' : sayThisMachine(name, type);

/** Starts a worker whose name server gives these responses, which the test can change later. */
async function startWorker(t: ExecutionContext, first: Say) {
  let say = first;
  const server = await startNameServerOf((name, type) => say(name, type));
  t.teardown(server.close);
  const lines: string[] = [];
  const log = pino(
    {},
    { write: (line: string) => void lines.push(JSON.parse(line).msg) },
  );
  const resolver = createNames([server.address]);
  let time = Date.now();
  const now = () => time;
  const dnsControl = createDnsControl({
    db,
    log,
    resolver,
    domains: [OWN, ...CONTROL_DOMAINS],
    now,
  });
  const check = checkOf({ resolver, dnsControl });
  return {
    lines,
    controls: () =>
      server.questions.filter((question) => question === 'MX gmail.com').length,
    pass: (ms: number) => {
      time += ms;
    },
    verdictOf: async (domain: string) => inWords(await check(candidate(`jo@${domain}`))),
    nowSays: (next: Say) => {
      say = next;
    },
  };
}

async function breaker(): Promise<string | undefined> {
  const [row] =
    await sql`select state, last_error from source_health where source = 'dns'`;
  return row && `${row.state} ${row.last_error}`;
}

test.serial.beforeEach(async () => {
  await sql`delete from source_health where source = 'dns'`;
});

for (const [about, say, denied] of [
  ['denies that any domain exists', () => 'NXDOMAIN', `${OWN}: nxdomain`],
  ['denies that any domain has records', () => [], `${OWN}: no_mx`],
  [
    'denies that any host has an address',
    (name, type) => (type === 'MX' ? sayThisMachine(name, type) : 'NXDOMAIN'),
    `${OWN}: bad_mx`,
  ],
  [
    'denies that a free-mail domain exists',
    (name, type) => (name === 'yahoo.com' ? 'NXDOMAIN' : truth(name, type)),
    'yahoo.com: nxdomain',
  ],
] as const satisfies readonly (readonly [string, Say, string])[]) {
  test.serial(`a DNS resolver that ${about} is not trusted`, async (t) => {
    const { verdictOf, lines } = await startWorker(t, say);
    t.is(await verdictOf('clinic.com'), 'transient dns_untrusted');
    t.is(await breaker(), `open denied ${denied}`);
    t.is(lines.length, 1);
    t.regex(lines[0] ?? '', /^name servers deny a mail domain that exists/);
  });
}

test.serial(
  'a DNS resolver that knows the well-known domains is trusted about other domains',
  async (t) => {
    const { verdictOf, lines } = await startWorker(t, truth);
    t.is(await verdictOf('clinic.com'), 'invalid nxdomain');
    t.is(await verdictOf('hospital.com'), 'valid mailbox_ok');
    t.is(await breaker(), 'closed null');
    t.deepEqual(lines, []);
  },
);

test.serial(
  'a DNS resolver that is silent about well-known domains is not trusted',
  async (t) => {
    const say: Say = (name, type) =>
      name.endsWith('clinic.com') ? truth(name, type) : 'silence';
    const { verdictOf } = await startWorker(t, say);
    t.is(await verdictOf('clinic.com'), 'transient dns_untrusted');
    t.is(await breaker(), 'open silent');
  },
);

test.serial(
  'a DNS resolver that is silent about only one well-known domain is still trusted',
  async (t) => {
    const say: Say = (name, type) =>
      name === 'gmail.com' ? 'silence' : truth(name, type);
    const { verdictOf } = await startWorker(t, say);
    t.is(await verdictOf('clinic.com'), 'invalid nxdomain');
  },
);

test.serial(
  'one successful check of a DNS resolver is enough for all domains for 30 s',
  async (t) => {
    const { verdictOf, controls, pass } = await startWorker(t, truth);
    const domains = ['clinic.com', 'a-clinic.com', 'b-clinic.com'];
    for (const verdict of await Promise.all(domains.map(verdictOf)))
      t.is(verdict, 'invalid nxdomain');
    t.is(controls(), 1, 'at the same time');
    pass(29_000);
    t.is(await verdictOf('c-clinic.com'), 'invalid nxdomain');
    t.is(controls(), 1);
    pass(2000);
    t.is(await verdictOf('d-clinic.com'), 'invalid nxdomain');
    t.is(controls(), 2);
  },
);

test.serial(
  'a DNS resolver that begins to deny existing domains is not trusted after 30 s',
  async (t) => {
    const { verdictOf, nowSays, pass } = await startWorker(t, truth);
    t.is(await verdictOf('clinic.com'), 'invalid nxdomain');
    nowSays(() => 'NXDOMAIN');
    pass(31_000);
    t.is(await verdictOf('hospital.com'), 'transient dns_untrusted');
  },
);

test.serial(
  'a repaired DNS resolver is trusted again after one successful check',
  async (t) => {
    const { verdictOf, nowSays, controls, lines } = await startWorker(
      t,
      () => 'NXDOMAIN',
    );
    t.is(await verdictOf('clinic.com'), 'transient dns_untrusted');
    nowSays(truth);
    t.is(await verdictOf('clinic.com'), 'transient dns_untrusted');
    t.is(controls(), 1);
    await sql`update source_health set open_until = now() where source = 'dns'`;
    t.is(await verdictOf('clinic.com'), 'invalid nxdomain');
    t.is(controls(), 2);
    t.is(await breaker(), 'closed null');
    t.is(lines.at(-1), 'name servers can be trusted again');
  },
);

test.serial(
  'the metrics and the status command report a DNS resolver that is not trusted',
  async (t) => {
    const counted = async () => {
      const { values = [] } =
        (await register.getSingleMetric('npe_source_calls_total')?.get()) ?? {};
      return (
        values.find(({ labels }) => labels.source === 'dns' && labels.result === 'lies')
          ?.value ?? 0
      );
    };
    const before = await counted();
    const { verdictOf } = await startWorker(t, () => 'NXDOMAIN');
    await verdictOf('clinic.com');
    t.is((await counted()) - before, 1);
    const { code, stdout } = await spawnOperator(url, ['status']);
    t.is(code, 3);
    t.true(stdout.includes(`name servers are not trusted (denied ${OWN}: nxdomain)`));
  },
);
