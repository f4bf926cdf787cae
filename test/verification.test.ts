import { Resolver } from 'node:dns/promises';
import test from 'ava';
import type { Candidate } from '../activities/providers/port.ts';
import { type CheckOptions, createCheck } from '../activities/verification/check.ts';
import { classify } from '../activities/verification/classify.ts';
import { parseAddress } from '../activities/verification/syntax.ts';
import { startDns } from '../deploy/local/dns.ts';
import { CORNERS } from '../deploy/local/dns-table.ts';
import { CLOSED_DOMAIN } from '../deploy/local/magic.ts';

const NOW = Date.UTC(2026, 10, 20);
const DAY_MS = 86_400_000;

type Dns = CheckOptions['resolver'];

/** A resolver for which every domain has an MX, except where the test says otherwise. */
function resolver(answers: Partial<Dns> = {}): Dns {
  return {
    resolveMx: async () => [{ exchange: 'mx.example.net', priority: 10 }],
    resolve4: async () => [],
    resolve6: async () => [],
    ...answers,
  };
}

function failure(code: string) {
  return async () => {
    throw Object.assign(new Error(`query ${code}`), { code });
  };
}

function candidate(email: string, rest: Partial<Candidate> = {}): Candidate {
  return { email, vendorType: null, verdict: 'valid', validatedAt: new Date(NOW - DAY_MS), ...rest };
}

async function checkWith(dns: Partial<Dns>, email: string, rest: Partial<Candidate> = {}) {
  return await createCheck({ resolver: resolver(dns), now: () => NOW })(candidate(email, rest));
}

async function verdictOf(email: string, rest: Partial<Candidate> = {}, dns: Partial<Dns> = {}) {
  const checked = await checkWith(dns, email, rest);
  return checked.kind === 'decided' ? `${checked.verdict} ${checked.reason}` : `transient ${checked.reason}`;
}

test('an address that passes everything is valid, with the time the vendor saw it', async (t) => {
  t.deepEqual(await checkWith({}, ' Rowan.Ashdown@CedarValleyClinic-Sim.com '), {
    kind: 'decided',
    verdict: 'valid',
    reason: 'mailbox_ok',
    emailType: 'professional',
    validatedAt: new Date(NOW - DAY_MS),
    email: 'rowan.ashdown@cedarvalleyclinic-sim.com',
  });
});

for (const [text, email] of [
  ['jo@Bücher.de', 'jo@xn--bcher-kva.de'],
  ["mary-o'hara+npi@sub.clinic.co.uk", "mary-o'hara+npi@sub.clinic.co.uk"],
  [`${'a'.repeat(64)}@clinic.com`, `${'a'.repeat(64)}@clinic.com`],
] as const) {
  test(`${text.slice(0, 40)} is an address`, (t) => {
    t.is(parseAddress(text)?.email, email);
  });
}

for (const text of [
  '',
  'jo',
  '@clinic.com',
  'jo@',
  'jo@clinic',
  'jo@clinic.com.',
  'jo@.clinic.com',
  'jo@cli..nic.com',
  'jo@-clinic.com',
  'jo@clinic-.com',
  'jo@cli_nic.com',
  'jo@cli nic.com',
  'jo@cli%6eic.com',
  'jo@127.0.0.1',
  'jo@127.1',
  'jo@0x7f.1',
  'jo@[127.0.0.1]',
  'jo@[IPv6:::1]',
  'jo@clinic.com:25',
  '.jo@clinic.com',
  'jo.@clinic.com',
  'jo..an@clinic.com',
  'jo an@clinic.com',
  '"jo an"@clinic.com',
  'jo(comment)@clinic.com',
  'jo@an@clinic.com',
  'j***@clinic.com',
  'jo@c*****.com',
  'jö@clinic.com',
  'jo\u0000@clinic.com',
  'jo@clinic.com\r\nBcc: x@clinic.com',
  'Jo <jo@clinic.com>',
  `${'a'.repeat(65)}@clinic.com`,
  `jo@${'a'.repeat(64)}.com`,
  `jo@${'a.'.repeat(130)}com`,
  `${'a'.repeat(60)}@${'abc.'.repeat(48)}com`,
]) {
  test(`${JSON.stringify(text).slice(0, 60)} is none (${text.length})`, async (t) => {
    t.is(parseAddress(text), null);
    t.is(await verdictOf(text), 'invalid syntax');
  });
}

for (const domain of ['nope.invalidtld', 'clinic.example', 'clinic.test', 'co.uk', 'printer.local']) {
  test(`a domain under no suffix that ICANN delegates is refused: ${domain}`, async (t) => {
    t.is(await verdictOf(`jo@${domain}`), 'invalid no_suffix');
  });
}

for (const [email, verdict] of [
  ['jo@mailinator.com', 'invalid disposable'],
  ['jo@sub.mailinator.com', 'invalid disposable'],
  ['xk29d@privaterelay.appleid.com', 'risky relay'],
  ['jo@duck.com', 'risky relay'],
  ['jo@simplelogin.co', 'risky relay'],
  ['info@clinic.com', 'risky role'],
  ['Front.Desk@clinic.com', 'risky role'],
  ['office2@clinic.com', 'risky role'],
  ['billing+north@clinic.com', 'risky role'],
  ['jo@29651.direct.athenahealth.com', 'invalid direct'],
  ['jo@nyumc.direct-ci.com', 'invalid direct'],
  ['jo@uprisedirect.com', 'invalid direct'],
  ['jo@direct.viacaremesh.com', 'invalid direct'],
  ['jo@practice.updox.com', 'invalid direct'],
] as const) {
  test(`${email} is refused: ${verdict}`, async (t) => {
    t.is(await verdictOf(email), verdict);
  });
}

for (const email of [
  'h.r@clinic.com',
  'informatics.jo@clinic.com',
  'jo@athenahealth.com',
  'jo@directcareclinic.com',
  'jo@mailinator-clinic.com',
]) {
  test(`${email} is not refused`, async (t) => {
    t.is(await verdictOf(email), 'valid mailbox_ok');
  });
}

for (const [domain, vendorType, type] of [
  ['gmail.com', null, 'personal'],
  ['gmail.com', 'professional', 'personal'],
  ['nyc.rr.com', null, 'personal'],
  ['physician.com', null, 'personal'],
  ['spectrum.net', null, 'personal'],
  ['alumni.stanford.edu', null, 'personal'],
  ['alum.mit.edu', 'professional', 'personal'],
  ['post.harvard.edu', null, 'personal'],
  ['harvard.edu', null, 'professional'],
  ['medscape.com', null, 'professional'],
  ['notgmail.com', null, 'professional'],
  ['clinic.com', 'personal', 'personal'],
  ['clinic.com', 'professional', 'professional'],
] as const) {
  test(`${domain}, which the vendor calls ${vendorType}, is ${type}`, (t) => {
    t.is(classify(domain, vendorType), type);
  });
}

for (const [about, rest, verdict] of [
  ['30 days old is fresh', { validatedAt: new Date(NOW - 30 * DAY_MS) }, 'valid mailbox_ok'],
  ['older is stale', { validatedAt: new Date(NOW - 30 * DAY_MS - 1) }, 'unknown stale_evidence'],
  ['without a date there is none', { validatedAt: null }, 'unknown no_evidence'],
  ['a date that is none is none', { validatedAt: new Date(Number.NaN) }, 'unknown no_evidence'],
  ['a date in the future is none', { validatedAt: new Date(NOW + 2 * DAY_MS) }, 'unknown no_evidence'],
  ["the vendor's unknown stays unknown", { verdict: 'unknown' }, 'unknown no_evidence'],
  ["the vendor's invalid stays invalid", { verdict: 'invalid' }, 'invalid mailbox_missing'],
  ["the vendor's catch-all stays one", { verdict: 'catch_all' }, 'catch_all null'],
  ["the vendor's risky stays risky", { verdict: 'risky' }, 'risky null'],
] as const) {
  test(`evidence: ${about}`, async (t) => {
    t.is(await verdictOf('jo@clinic.com', rest), verdict);
  });
}

test("a vendor's clock that is ahead does not put a validation into the future", async (t) => {
  const checked = await checkWith({}, 'jo@clinic.com', { validatedAt: new Date(NOW + 60_000) });
  t.like(checked, { verdict: 'valid', validatedAt: new Date(NOW) });
});

for (const [about, dns, verdict] of [
  [
    'no MX but an address',
    { resolveMx: failure('ENODATA'), resolve4: async () => ['192.0.2.1'] },
    'valid mailbox_ok',
  ],
  [
    'no MX but an IPv6 address',
    { resolveMx: failure('ENODATA'), resolve4: failure('ENODATA'), resolve6: async () => ['2001:db8::1'] },
    'valid mailbox_ok',
  ],
  [
    'neither MX nor address',
    { resolveMx: failure('ENODATA'), resolve4: failure('ENODATA'), resolve6: failure('ENODATA') },
    'invalid no_mx',
  ],
  ['a null MX', { resolveMx: async () => [{ exchange: '', priority: 0 }] }, 'invalid null_mx'],
  [
    'a null MX beside a real one',
    {
      resolveMx: async () => [
        { exchange: '', priority: 0 },
        { exchange: 'mx.clinic.com', priority: 5 },
      ],
    },
    'valid mailbox_ok',
  ],
  ['no such domain', { resolveMx: failure('ENOTFOUND') }, 'invalid nxdomain'],
  ['a failing server', { resolveMx: failure('ESERVFAIL') }, 'transient dns_failure'],
  ['a refusing server', { resolveMx: failure('EREFUSED') }, 'transient dns_failure'],
  ['a silent server', { resolveMx: failure('ETIMEOUT') }, 'transient timeout'],
  [
    'a server that fails at the address',
    { resolveMx: failure('ENODATA'), resolve4: failure('ESERVFAIL') },
    'transient dns_failure',
  ],
] as const) {
  test(`name servers: ${about} makes it ${verdict}`, async (t) => {
    t.is(await verdictOf('jo@clinic.com', {}, dns), verdict);
  });
}

test('name servers are not asked about an address that cannot become valid', async (t) => {
  const resolveMx = async () => t.fail() as never;
  await verdictOf('info@clinic.com', {}, { resolveMx });
  await verdictOf('jo@clinic.com', { verdict: 'unknown' }, { resolveMx });
  t.pass();
});

test('name servers are asked once about a domain, and again after some minutes', async (t) => {
  let asked = 0;
  let now = NOW;
  const resolveMx = async () => {
    asked += 1;
    return [{ exchange: 'mx.clinic.com', priority: 1 }];
  };
  const check = createCheck({ resolver: resolver({ resolveMx }), now: () => now });
  await Promise.all(['a@clinic.com', 'b@clinic.com', 'c@CLINIC.com'].map((email) => check(candidate(email))));
  await check(candidate('d@clinic.com'));
  t.is(asked, 1);
  await check(candidate('d@other.com'));
  t.is(asked, 2);
  now += 10 * 60_000;
  await check(candidate('e@clinic.com'));
  t.is(asked, 3);
});

test('a domain that fell out of the bounded memory is asked about again', async (t) => {
  const asked = new Map<string, number>();
  const resolveMx = async (domain: string) => {
    asked.set(domain, (asked.get(domain) ?? 0) + 1);
    return [{ exchange: 'mx.clinic.com', priority: 1 }];
  };
  const check = createCheck({ resolver: resolver({ resolveMx }), now: () => NOW });
  await check(candidate('jo@first.com'));
  for (let n = 0; n < 2000; n += 1) await check(candidate(`jo@clinic${n}.com`));
  await check(candidate('jo@first.com'));
  await check(candidate('jo@clinic1999.com'));
  t.is(asked.get('first.com'), 2);
  t.is(asked.get('clinic1999.com'), 1);
});

test('a failure of name servers is forgotten at once', async (t) => {
  let broken = true;
  const resolveMx = async () => {
    if (broken) return await failure('ESERVFAIL')();
    return [{ exchange: 'mx.clinic.com', priority: 1 }];
  };
  const check = createCheck({ resolver: resolver({ resolveMx }), now: () => NOW });
  t.is((await check(candidate('jo@clinic.com'))).kind, 'transient');
  broken = false;
  t.like(await check(candidate('jo@clinic.com')), { kind: 'decided', verdict: 'valid' });
});

test("the production resolver's answers are understood", async (t) => {
  const dns = await startDns();
  t.teardown(() => dns.close());
  const real = new Resolver();
  real.setServers([dns.address]);
  const check = createCheck({ resolver: real, now: () => NOW });
  const seen: Record<string, string | null> = {};
  for (const domain of ['gmail.com', CLOSED_DOMAIN, 'nobody-has-this-sim.com', ...Object.values(CORNERS)]) {
    seen[domain] = (await check(candidate(`npi.sim@${domain}`))).reason;
  }
  t.deepEqual(seen, {
    'gmail.com': 'mailbox_ok',
    [CLOSED_DOMAIN]: 'null_mx',
    'nobody-has-this-sim.com': 'nxdomain',
    [CORNERS.addressOnly]: 'mailbox_ok',
    [CORNERS.noMail]: 'no_mx',
    [CORNERS.broken]: 'dns_failure',
  });
});
