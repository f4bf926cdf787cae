import test from 'ava';
import { pino } from 'pino';
import { consult, limited } from '../../../activities/verification/consult.ts';
import { VERIFIERS } from '../../../activities/verification/verifiers/catalogue.ts';
import { createVerifier } from '../../../activities/verification/verifiers/verifier.ts';
import type { Evidence } from '../../../db/lookups/checks.ts';
import { FOR_NOBODY } from '../../support/checks.ts';
import { freshDatabase } from '../../support/database.ts';
import { playVendor, responsesOf } from '../../support/vendors.ts';

// Reacher reports a missing mailbox if a mail server rejects Reacher's IP address.

const { db, sql } = freshDatabase(test);

/** Records results of a verifier as the newest ones. */
async function record(source: string, reason: string, results: number): Promise<void> {
  const verdict = reason === 'mailbox_ok' ? 'valid' : 'invalid';
  await sql`
    insert into email_checks (npi, email, kind, source, verdict, reason)
    select '2000000010', 'jo@clinic.com', 'verifier', ${source}, ${verdict}, ${reason}
      from generate_series(1, ${results})`;
}

for (const [about, id, response, missing, expected] of [
  [
    'counts if 60 of the last 100 are',
    'reacher',
    'missing',
    60,
    'invalid mailbox_missing',
  ],
  [
    'does not count if 61 of the last 100 are',
    'reacher',
    'missing',
    61,
    'unknown verifier_suspect',
  ],
  [
    'counts if it comes from a paid verifier',
    'neverbounce',
    'invalid',
    100,
    'invalid mailbox_missing',
  ],
] as const) {
  test.serial(`a result "mailbox missing" ${about}`, async (t) => {
    await sql`delete from email_checks`;
    await record(id, 'mailbox_missing', 100);
    await record(id, 'mailbox_ok', 100 - missing);
    await record(id, 'mailbox_missing', missing);
    const body = responsesOf(id).get(response);
    const { url } = await playVendor(t, { status: 200, body });
    const lines: unknown[] = [];
    const log = pino({}, { write: (line: string) => void lines.push(JSON.parse(line)) });
    const verifier = createVerifier(VERIFIERS[id], { baseUrl: url, apiKey: 'key' });
    const evidence: Evidence[] = [];
    const step = await consult(
      [limited({ db, log, verifier, limits: { rates: [], dailyCredits: null } })],
      { email: 'jo@clinic.com', undecided: {} },
      FOR_NOBODY,
      evidence,
    );
    t.like(step, { kind: 'word' });
    t.deepEqual(
      evidence.map(({ verdict, reason }) => `${verdict} ${reason}`),
      [expected],
    );
    t.is(lines.length, expected === 'unknown verifier_suspect' ? 1 : 0);
  });
}
