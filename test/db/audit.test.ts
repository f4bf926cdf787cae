import test from 'ava';
import type { TransactionSql } from 'postgres';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase } from '../support/database.ts';
import { auditLedger } from '../support/ledger.ts';
import {
  openOrganization,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests the audit of the ledger, on which the model and race tests rely. Each test plants one
// corruption without triggers and constraints, audits, and rolls back.

const { db, sql } = freshDatabase(test);
let organizationId: string;

test.before(async () => {
  const organization = await openOrganization(db, 100);
  organizationId = organization.organizationId;
  const npis = ['1000000001', '1000000001', '1000000002'];
  await storeEmail(db, {
    npi: '1000000001',
    email: 'a@example.com',
  });
  const { requestIds } = await submitAccepted(db, organization, { npis });
  await settle(db, requestIds[2] ?? '', 'failed', 'test', RULES);
  await submit(db, submitCommand(organization, { npis: ['1000000003'] }), RULES);
});

class RolledBack extends Error {
  readonly findings: readonly string[];
  constructor(findings: readonly string[]) {
    super('rolled back');
    this.findings = findings;
  }
}

/**
 * Returns the findings of the audit for the organization after `plant`, and rolls everything back.
 */
async function auditAfter(
  plant: (tx: TransactionSql) => Promise<unknown>,
): Promise<readonly string[]> {
  try {
    return await sql.begin(async (tx) => {
      await tx`set local session_replication_role = replica`;
      await plant(tx);
      throw new RolledBack(await auditLedger(tx, [organizationId], RULES.replayMs));
    });
  } catch (error) {
    if (error instanceof RolledBack) return error.findings;
    throw error;
  }
}

const CHARGED = `(select id from requests where credits_used > 0)`;

test.serial('the ledger audit finds nothing in an intact database', async (t) => {
  t.deepEqual(await auditAfter(async () => {}), []);
});

const CORRUPTIONS: readonly (readonly [
  finding: string,
  planted: string,
  statements: string,
])[] = [
  [
    'L1 balance',
    'a balance that is higher than its ledger entries add up to',
    'update credit_balances set total = total + 1, available = available + 1',
  ],
  [
    'L1 balance',
    'a grant that was not added to the balance',
    `insert into ledger_entries (organization_id, kind, amount) select id, 'grant', 5 from organizations`,
  ],
  [
    'L2 overspent',
    'a balance below zero',
    `alter table credit_balances drop constraint credit_balances_available;
     update credit_balances set available = -1, total = total - available - 1`,
  ],
  [
    'L3 holds',
    'a charge whose hold was deleted',
    `delete from ledger_entries where kind = 'hold' and request_id in ${CHARGED}`,
  ],
  [
    'L3 holds',
    'a final request whose credits are still held',
    `delete from ledger_entries where kind = 'release'`,
  ],
  [
    'L3 holds',
    'an open request whose credits were released',
    `insert into ledger_entries (organization_id, request_id, kind, amount)
     select organization_id, id, 'release', 1 from requests where settled_at is null`,
  ],
  [
    'L3 holds',
    'a request with both a charge and a release',
    `alter table ledger_entries drop constraint ledger_entries_once;
     insert into ledger_entries (organization_id, request_id, kind, amount)
     select organization_id, request_id, 'charge', 1 from ledger_entries where kind = 'release'`,
  ],
  [
    'L4 status',
    'a charged request that is marked as a replay',
    `update requests set replayed = true where id in ${CHARGED}`,
  ],
  [
    'L4 status',
    'a replay that is marked as a paid request',
    'update requests set replayed = false where replayed',
  ],
  [
    'L5 charged again',
    'a second charge for the same NPI',
    `update requests set replayed = false where replayed;
     insert into ledger_entries (organization_id, request_id, kind, amount)
     select organization_id, id, kind, 1 from requests, (values (1, 'hold'), (2, 'charge')) kinds (nr, kind)
      where status = 'completed' and id not in (select request_id from ledger_entries where kind = 'charge') order by nr`,
  ],
  [
    'L5 replayed',
    'a replay long after its charge',
    `update ledger_entries set created_at = created_at - interval '31 days' where kind = 'charge'`,
  ],
  [
    'S1 count',
    'a batch whose completed count is one too low',
    'update batches set completed_count = completed_count - 1 where total = 3',
  ],
];

for (const [finding, planted, statements] of CORRUPTIONS) {
  test.serial(`the ledger audit finds ${planted}`, async (t) => {
    const findings = await auditAfter((tx) => tx.unsafe(statements));
    t.true(
      findings.some((line) => line.startsWith(finding)),
      JSON.stringify(findings),
    );
  });
}
