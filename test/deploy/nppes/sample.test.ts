import test from 'ava';
import { writeSample } from '../../../deploy/local/sample.ts';
import { DEACTIVATED_NPIS } from '../../../deploy/local/sim/magic.ts';
import {
  personOf,
  SAMPLE_NPIS,
  SAMPLE_ORGANIZATIONS,
} from '../../../deploy/local/sim/people.ts';
import { openNppesWorld } from '../../support/nppes.ts';

test("npm start's sample data of providers can be imported", async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const full = await imported(await writeSample(folder));
  const people = SAMPLE_NPIS.length + SAMPLE_ORGANIZATIONS.length;
  t.like(full.files, { npidata: { read: people, inserted: people, rejected: 0 } });
  const { pl: _none, ...filled } = full.files;
  for (const counts of Object.values(filled))
    t.true((counts.inserted ?? 0) > 0 && counts.rejected === 0);

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
});

test('people in the sample data match their practice by phone and by address', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  await imported(await writeSample(folder));
  const [lost] = await sql`
    select count(*)::integer as count from providers p
     where p.entity_type = 1 and not exists (
       select from providers o where o.entity_type = 2 and o.phone_key = p.phone_key and o.address_key = p.address_key)`;
  t.is(lost?.count, 0);
});

test('the sample data is always the same, so a second npm start imports nothing', async (t) => {
  const { folder, imported } = await openNppesWorld(t);
  await imported(await writeSample(folder));
  t.is((await imported(await writeSample(folder))).outcome, 'already');
});
