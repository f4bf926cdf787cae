import type { ExecutionContext } from 'ava';
import test from 'ava';
import { createNames } from '../../../activities/http/names.ts';
import type { CheckOptions } from '../../../activities/verification/check.ts';
import type { NamedCandidate } from '../../../activities/verification/policy.ts';
import {
  candidate,
  checkOf,
  failure,
  inWords,
  NOW,
  resolver,
  verifierOf,
} from '../../support/checks.ts';
import { type Said, startNameServer } from '../../support/name-server.ts';

type Dns = Partial<CheckOptions['resolver']>;

async function verdictOf(
  email: string,
  rest: Partial<NamedCandidate> = {},
  dns: Dns = {},
) {
  return inWords(await checkOf({ resolver: resolver(dns) })(candidate(email, rest)));
}

const NO_MX = { resolveMx: failure('ENODATA') };

for (const [about, dns, verdict] of [
  [
    'no MX record',
    { ...NO_MX, resolve4: failure('ENODATA'), resolve6: failure('ENODATA') },
    'invalid no_mx',
  ],
  ['an A record but no MX record', NO_MX, 'invalid no_mx'],
  [
    'a null MX record',
    { resolveMx: async () => [{ exchange: '', priority: 0 }] },
    'invalid null_mx',
  ],
  ['no entry in the DNS', { resolveMx: failure('ENOTFOUND') }, 'invalid nxdomain'],
  ['failing name servers', { resolveMx: failure('ESERVFAIL') }, 'transient dns_failure'],
  [
    'name servers that refuse',
    { resolveMx: failure('EREFUSED') },
    'transient dns_failure',
  ],
  ['silent name servers', { resolveMx: failure('ETIMEOUT') }, 'transient timeout'],
  [
    'a mail exchanger with failing name servers',
    { resolve4: failure('ESERVFAIL') },
    'transient dns_failure',
  ],
  [
    'a mail exchanger with silent name servers',
    { resolve4: failure('ETIMEOUT') },
    'transient timeout',
  ],
] as const) {
  test(`an address at a domain with ${about} gets the verdict "${verdict}"`, async (t) => {
    const nothing = { resolve6: failure('ENODATA') };
    t.is(await verdictOf('jo@clinic.com', {}, { ...nothing, ...dns }), verdict);
  });
}

type Zone = Readonly<Record<string, readonly string[]>>;

/**
 * Checks jo@clinic.com with the production resolver against a zone. Returns the verdict and the
 * queries.
 */
async function verdictIn(t: ExecutionContext, zone: Zone) {
  const say = (name: string, type: string): Said => {
    const said = type === 'MX' ? zone.MX : zone[name];
    return said?.length === 0 ? 'SERVFAIL' : (said ?? 'NXDOMAIN');
  };
  const { address, questions, close } = await startNameServer(say);
  t.teardown(close);
  const check = checkOf({ resolver: createNames([address]) });
  return { verdict: inWords(await check(candidate('jo@clinic.com'))), questions };
}

const PUBLIC = ['198.41.0.4'];

for (const [about, zone, verdict] of [
  [
    'with a public address',
    { MX: ['mx.clinic.com'], 'mx.clinic.com': PUBLIC },
    'valid mailbox_ok',
  ],
  [
    'written in capitals',
    { MX: ['MX.Clinic.com'], 'mx.clinic.com': PUBLIC },
    'valid mailbox_ok',
  ],
  [
    'with a name made by a proxy',
    { MX: ['_dc-mx.x1.a.com'], '_dc-mx.x1.a.com': PUBLIC },
    'valid mailbox_ok',
  ],
  [
    'with a public IPv6 address',
    { MX: ['mx.a.com'], 'mx.a.com': ['2001:503:ba3e::2:30'] },
    'valid mailbox_ok',
  ],
  [
    'after one that does not exist',
    { MX: ['old.a.com', 'mx.a.com'], 'mx.a.com': PUBLIC },
    'valid mailbox_ok',
  ],
  [
    'next to a null MX',
    { MX: ['.', 'mx.a.com'], 'mx.a.com': PUBLIC },
    'valid mailbox_ok',
  ],
  [
    "of a registrar's mail forwarding",
    {
      MX: ['eforward1.registrar-servers.com'],
      'eforward1.registrar-servers.com': PUBLIC,
    },
    'valid mailbox_ok',
  ],
  ['that is localhost', { MX: ['localhost'], localhost: PUBLIC }, 'invalid bad_mx'],
  ['whose name is a single label', { MX: ['mail'], mail: PUBLIC }, 'invalid bad_mx'],
  [
    'with an internal name',
    { MX: ['mail.office.local'], 'mail.office.local': PUBLIC },
    'invalid bad_mx',
  ],
  [
    'that is an IP address',
    { MX: ['198.41.0.4'], '198.41.0.4': PUBLIC },
    'invalid bad_mx',
  ],
  ['that does not exist', { MX: ['mx.a.com'] }, 'invalid bad_mx'],
  [
    'at a loopback address',
    { MX: ['mx.a.com'], 'mx.a.com': ['127.0.0.1', '::1'] },
    'invalid bad_mx',
  ],
  [
    'with a private address',
    { MX: ['mx.a.com'], 'mx.a.com': ['10.1.2.3', 'fd00::1'] },
    'invalid bad_mx',
  ],
  [
    'with a documentation address',
    { MX: ['mx.a.com'], 'mx.a.com': ['192.0.2.25'] },
    'invalid bad_mx',
  ],
  ['at 0.0.0.0', { MX: ['mx.a.com'], 'mx.a.com': ['0.0.0.0'] }, 'invalid bad_mx'],
  ['whose lookup fails', { MX: ['mx.a.com'], 'mx.a.com': [] }, 'transient dns_failure'],
  [
    'whose lookup fails, and another one that is localhost',
    {
      MX: ['localhost', 'mx.a.com'],
      'mx.a.com': [],
    },
    'transient dns_failure',
  ],
  [
    'of a domain-parking service',
    { MX: ['mail.H-email.net'], 'mail.h-email.net': PUBLIC },
    'invalid parked',
  ],
  [
    'of a domain-parking service as the second of two',
    {
      MX: ['mx.a.com', 'park-mx.above.com'],
      'mx.a.com': PUBLIC,
    },
    'invalid parked',
  ],
  [
    'of a disposable mail service',
    { MX: ['mx.emlhub.com'], 'mx.emlhub.com': PUBLIC },
    'invalid disposable',
  ],
] as const satisfies readonly (readonly [string, Zone, string])[]) {
  test(`if a domain has a mail exchanger ${about}, its addresses get the verdict "${verdict}"`, async (t) => {
    t.is((await verdictIn(t, zone)).verdict, verdict);
  });
}

test('the mail exchanger with the best priority is looked up first', async (t) => {
  const exchangers = [9, 8, 7, 6, 1].map((priority) => ({
    exchange: `mx${priority}.clinic.com`,
    priority,
  }));
  const resolve4 = async (host: string) => (host === 'mx1.clinic.com' ? PUBLIC : []);
  const dns = { resolveMx: async () => exchangers, resolve4 };
  t.is(await verdictOf('jo@clinic.com', {}, dns), 'valid mailbox_ok');
});

test('only the first few mail exchangers of a domain are looked up', async (t) => {
  const names = Array.from({ length: 30 }, (_, n) => `mx${n}.a.com`);
  const { verdict, questions } = await verdictIn(t, { MX: names, 'mx29.a.com': PUBLIC });
  t.is(verdict, 'invalid bad_mx');
  // The resolver asks again if a response is late.
  t.is(new Set(questions).size, 7);
});

test('an address that cannot become valid causes no DNS lookup', async (t) => {
  const resolveMx = async () => t.fail() as never;
  await verdictOf('info@clinic.com', {}, { resolveMx });
  await verdictOf('jo@clinic.com', { verdict: 'unknown' }, { resolveMx });
  t.pass();
});

test('no verifier is called for a domain without mail or with failing name servers', async (t) => {
  const verifier = verifierOf('one', {
    kind: 'judgment',
    verdict: 'valid',
    reason: 'mailbox_ok',
  });
  const unknown = candidate('jo@clinic.com', { verdict: 'unknown' });
  for (const [code, verdict] of [
    ['ENOTFOUND', 'invalid nxdomain'],
    ['ESERVFAIL', 'transient dns_failure'],
  ] as const) {
    const check = checkOf({
      resolver: resolver({ resolveMx: failure(code) }),
      verifiers: [verifier],
    });
    t.is(inWords(await check(unknown)), verdict);
  }
  t.is(verifier.asked(), 0);
});

test('the mail exchangers of a domain are cached for some minutes', async (t) => {
  let asked = 0;
  let now = NOW;
  const resolveMx = async () => {
    asked += 1;
    return [{ exchange: 'mx.clinic.com', priority: 1 }];
  };
  const check = checkOf({ resolver: resolver({ resolveMx }), now: () => now });
  await Promise.all(
    ['a@clinic.com', 'b@clinic.com', 'c@CLINIC.com'].map((email) =>
      check(candidate(email)),
    ),
  );
  await check(candidate('d@clinic.com'));
  t.is(asked, 1);
  await check(candidate('d@other.com'));
  t.is(asked, 2);
  now += 10 * 60_000;
  await check(candidate('e@clinic.com'));
  t.is(asked, 3);
});

test('a domain is looked up again after the full cache has dropped it', async (t) => {
  const asked = new Map<string, number>();
  const resolveMx = async (domain: string) => {
    asked.set(domain, (asked.get(domain) ?? 0) + 1);
    return [{ exchange: 'mx.clinic.com', priority: 1 }];
  };
  const check = checkOf({ resolver: resolver({ resolveMx }) });
  await check(candidate('jo@first.com'));
  for (let n = 0; n < 2000; n += 1) await check(candidate(`jo@clinic${n}.com`));
  await check(candidate('jo@first.com'));
  await check(candidate('jo@clinic1999.com'));
  t.is(asked.get('first.com'), 2);
  t.is(asked.get('clinic1999.com'), 1);
});

test('a failure of the name servers is not cached', async (t) => {
  let broken = true;
  const resolveMx = async () => {
    if (broken) return await failure('ESERVFAIL')();
    return [{ exchange: 'mx.clinic.com', priority: 1 }];
  };
  const check = checkOf({ resolver: resolver({ resolveMx }) });
  t.is((await check(candidate('jo@clinic.com'))).kind, 'transient');
  broken = false;
  t.like(await check(candidate('jo@clinic.com')), { kind: 'decided', verdict: 'valid' });
});

test('the DNS resolver of production reads the responses of a real name server', async (t) => {
  const said: Readonly<Record<string, Said>> = {
    'MX clinic.com': ['mx.clinic.com'],
    'A mx.clinic.com': ['198.41.0.4'],
    'MX closed.com': ['.'],
    'MX nobody-has-this.com': 'NXDOMAIN',
    'A address-only.com': ['198.41.0.4'],
    'MX broken.com': 'SERVFAIL',
  };
  const server = await startNameServer((name, type) => said[`${type} ${name}`] ?? []);
  t.teardown(server.close);
  const check = checkOf({ resolver: createNames([server.address]) });
  const seen: Record<string, string | null> = {};
  for (const domain of [
    'clinic',
    'closed',
    'nobody-has-this',
    'address-only',
    'no-records',
    'broken',
  ]) {
    seen[domain] = (await check(candidate(`npi.sim@${domain}.com`))).reason;
  }
  t.deepEqual(seen, {
    clinic: 'mailbox_ok',
    closed: 'null_mx',
    'nobody-has-this': 'nxdomain',
    'address-only': 'no_mx',
    'no-records': 'no_mx',
    broken: 'dns_failure',
  });
});
