import test from 'ava';
import { createNames } from '../../../activities/http/names.ts';
import type { CheckOptions } from '../../../activities/verification/check.ts';
import type { NamedCandidate } from '../../../activities/verification/policy.ts';
import { CORNERS, startDns } from '../../../deploy/local/dns.ts';
import { CLOSED_DOMAIN } from '../../../deploy/local/sim/people.ts';
import { candidate, checkOf, failure, inWords, NOW, resolver, verifierOf } from '../../support/checks.ts';

type Dns = Partial<CheckOptions['resolver']>;

async function verdictOf(email: string, rest: Partial<NamedCandidate> = {}, dns: Dns = {}) {
  return inWords(await checkOf({ resolver: resolver(dns) })(candidate(email, rest)));
}

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

test('a verifier is not asked about a domain that takes no mail, or whose name servers are away', async (t) => {
  const verifier = verifierOf('one', { kind: 'answer', verdict: 'valid', reason: 'mailbox_ok' });
  const unknown = candidate('jo@clinic.com', { verdict: 'unknown' });
  for (const [code, verdict] of [
    ['ENOTFOUND', 'invalid nxdomain'],
    ['ESERVFAIL', 'transient dns_failure'],
  ] as const) {
    const check = checkOf({ resolver: resolver({ resolveMx: failure(code) }), verifiers: [verifier] });
    t.is(inWords(await check(unknown)), verdict);
  }
  t.is(verifier.asked(), 0);
});

test('name servers are asked once about a domain, and again after some minutes', async (t) => {
  let asked = 0;
  let now = NOW;
  const resolveMx = async () => {
    asked += 1;
    return [{ exchange: 'mx.clinic.com', priority: 1 }];
  };
  const check = checkOf({ resolver: resolver({ resolveMx }), now: () => now });
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
  const check = checkOf({ resolver: resolver({ resolveMx }) });
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
  const check = checkOf({ resolver: resolver({ resolveMx }) });
  t.is((await check(candidate('jo@clinic.com'))).kind, 'transient');
  broken = false;
  t.like(await check(candidate('jo@clinic.com')), { kind: 'decided', verdict: 'valid' });
});

test("the production resolver's answers are understood", async (t) => {
  const dns = await startDns();
  t.teardown(() => dns.close());
  const check = checkOf({ resolver: createNames([dns.address]) });
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
