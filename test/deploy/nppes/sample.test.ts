import test from 'ava';
import { writeSample } from '../../../deploy/local/sample.ts';
import { DEACTIVATED_NPIS } from '../../../deploy/local/sim/magic.ts';
import { personOf, SAMPLE_NPIS, SAMPLE_ORGANIZATIONS } from '../../../deploy/local/sim/people.ts';
import { openNppesWorld } from '../../support/nppes.ts';

test('the sample of the local stack is imported, and its weekly download after it', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const { zip, weekly } = await writeSample(folder);
  const full = await imported(zip);
  const people = SAMPLE_NPIS.length + SAMPLE_ORGANIZATIONS.length + 3;
  t.like(full.files, { npidata: { read: people, inserted: people, rejected: 0 } });
  for (const counts of Object.values(full.files)) t.true((counts.inserted ?? 0) > 0 && counts.rejected === 0);
  t.like((await imported(weekly)).files, {
    npidata: { read: 4, inserted: 1, updated: 3, deactivated: 1, reactivated: 1 },
  });

  const rows =
    await sql`select npi, first_name, last_name, active from providers where npi in ${sql([...SAMPLE_NPIS])}`;
  t.is(rows.length, SAMPLE_NPIS.length);
  for (const { npi, first_name, last_name, active } of rows) {
    const isDeactivated = DEACTIVATED_NPIS.includes(npi);
    const { first, last } = personOf(npi);
    t.is(active, !isDeactivated);
    t.deepEqual(
      [first_name, last_name],
      isDeactivated ? [null, null] : [first.toUpperCase(), last.toUpperCase()],
    );
  }
  const other =
    await sql`select distinct other_last_name as name from providers where other_last_name like 'MU%'`;
  t.deepEqual(
    other.map(({ name }) => name),
    ['MUÑOZ'],
  );
});

test('a person of the sample is found at their practice by telephone and by address', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  await imported((await writeSample(folder)).zip);
  const [lost] = await sql`
    select count(*)::integer as count from providers p
     where p.entity_type = 1 and not exists (
       select from providers o where o.entity_type = 2 and o.phone_key = p.phone_key and o.address_key = p.address_key)`;
  t.is(lost?.count, 0);
});

test('the sample is written the same again, so that a second start has nothing to import', async (t) => {
  const { folder, imported } = await openNppesWorld(t);
  await imported((await writeSample(folder)).zip);
  t.is((await imported((await writeSample(folder)).zip)).outcome, 'already');
});
