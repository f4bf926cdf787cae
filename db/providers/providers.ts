import { sql } from 'drizzle-orm';
import type { PgInsertValue, PgTable } from 'drizzle-orm/pg-core';
import { type Database, insertAll, run, type Transaction, transaction } from '../client.ts';
import { providerEndpoints, providerLocations, providerOtherNames, providers } from '../schema.ts';
import { providerKeys } from './keys.ts';

// What the NPI registry says of NPIs that no import has brought. An import knows better: its rows are never touched.

type Row = typeof providers.$inferSelect;

/** An active NPI as the registry has it, in the words of NPPES; empty fields are null. */
export interface RegistryProvider
  extends Readonly<
    Pick<
      Row,
      | ('npi' | 'lastName' | 'firstName' | 'middleName' | 'nameSuffix' | 'credential' | 'otherLastName')
      | ('otherFirstName' | 'organizationName' | 'parentName')
    >
  > {
  readonly entityType: 1 | 2;
  readonly practice: RegistryLocation | null;
  readonly endpoints: readonly RegistryEndpoint[];
  /** Of organizations. */
  readonly otherNames: readonly { readonly name: string; readonly typeCode: string }[];
  readonly locations: readonly RegistryLocation[];
}

/** Postal codes have five or nine digits. */
export type RegistryLocation = Readonly<
  Record<'line1' | 'line2' | 'city' | 'state' | 'postalCode' | 'phone', string | null>
>;

export type RegistryEndpoint = Omit<typeof providerEndpoints.$inferSelect, 'npi' | 'affiliated'>;

/**
 * Of these NPIs those that the registry is to be asked about: no import has them, and the registry has not been asked
 * for a day (the etiquette of its public clients). An answer older than that stays in use until a newer one comes.
 */
export async function listRegistryDue(db: Database, npis: readonly string[]): Promise<string[]> {
  const rows = await run<{ npi: string }>(db)`
    select distinct asked.npi from unnest(${sql.param(npis)}::text[]) asked(npi)
     where not exists (
       select from providers p where p.npi = asked.npi
          and (p.origin = 'nppes' or p.imported_at > clock_timestamp() - interval '24 hours'))`;
  return rows.map(({ npi }) => npi);
}

/**
 * Keeps what the registry says of an NPI, in place of what it said before. Changes nothing if an import has the NPI.
 */
export async function storeRegistryProvider(db: Database, provider: RegistryProvider): Promise<void> {
  const { npi, practice, endpoints, otherNames, locations, ...facts } = provider;
  await transaction(db, async (tx) => {
    const isStored = await replaceRow(tx, { npi, ...facts, ...(practice && practiceOf(practice)) });
    if (!isStored) return;
    const ofNpi = <T extends object>(rows: readonly T[]) => rows.map((row) => ({ npi, ...row }));
    await add(tx, providerEndpoints, ofNpi(endpoints));
    await add(tx, providerOtherNames, ofNpi(otherNames));
    await add(tx, providerLocations, ofNpi(locations.map(locationRow)));
  });
}

/** The registry may name one thing twice; the first counts. */
async function add<T extends PgTable>(tx: Transaction, table: T, rows: T['$inferInsert'][]): Promise<void> {
  if (rows.length > 0) await tx.execute(sql`${insertAll(table, rows)} on conflict do nothing`);
}

/**
 * Keeps that the registry has no active provider under an NPI: deactivated as of today, and nothing else. The row
 * closes the gate for a day; then the registry is asked again, because an NPI may be new or come back.
 * Changes nothing if an import has the NPI.
 */
export async function storeRegistryAbsence(db: Database, npi: string): Promise<void> {
  await transaction(db, (tx) => replaceRow(tx, { npi, deactivatedOn: sql`current_date` }));
}

/**
 * Writes the row and removes what hung on the old one: whatever is not said anew is not known any more. Of two that ask
 * at once the first counts.
 * @returns false if an import has the NPI
 */
async function replaceRow(
  tx: Transaction,
  row: Omit<PgInsertValue<typeof providers>, 'origin' | 'rowHash'>,
): Promise<boolean> {
  const npi = sql`npi = ${row.npi}`;
  await tx.delete(providers).where(sql`${npi} and origin = 'registry'`);
  // An import compares hashes to skip what has not changed; what the registry said must never look unchanged to it.
  const written = await tx
    .insert(providers)
    .values({ ...row, origin: 'registry', rowHash: 0 })
    .onConflictDoNothing()
    .returning({ npi: providers.npi });
  if (written.length === 0) return false;
  for (const table of [providerEndpoints, providerOtherNames, providerLocations]) {
    await tx.delete(table).where(npi);
  }
  return true;
}

function practiceOf(practice: RegistryLocation) {
  const { line1, line2, city, state, postalCode, phone } = practice;
  return {
    ...{ practiceLine1: line1, practiceLine2: line2, practiceCity: city, practiceState: state },
    ...{ practicePostalCode: postalCode, practicePhone: phone, ...providerKeys(practice) },
  };
}

function locationRow(location: RegistryLocation) {
  const of = (part: keyof RegistryLocation) => location[part] ?? '';
  const place = { line1: of('line1'), line2: of('line2'), city: of('city'), state: of('state') };
  return { ...place, postalCode: of('postalCode'), phone: location.phone, ...providerKeys(location) };
}
