import { sql } from 'drizzle-orm';
import { type Database, insertAll, run, transaction } from '../client.ts';
import { providerEndpoints, providerLocations, providerOtherNames, providers } from '../schema.ts';
import { providerKeys } from './keys.ts';

// What the NPI registry says of NPIs that no import has brought. An import knows better: its rows
// are never touched.

type Row = typeof providers.$inferSelect;

/** An active NPI as the registry has it, in the words of NPPES; empty fields are null. */
export interface RegistryProvider
  extends Readonly<
    Pick<
      Row,
      | (
          | 'npi'
          | 'lastName'
          | 'firstName'
          | 'middleName'
          | 'nameSuffix'
          | 'credential'
          | 'otherLastName'
        )
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

export type RegistryEndpoint = Omit<typeof providerEndpoints.$inferSelect, 'npi' | 'importNumber'>;

/**
 * Of these NPIs those that the registry is to be asked about: no import has them, and the registry
 * has not been asked for a day (the etiquette of its public clients). An answer older than that
 * stays in use until a newer one comes.
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
 * Keeps what the registry says of an NPI, in place of what it said before. Changes nothing if an
 * import has the NPI, or if somebody who asked at the same time was first.
 * @param provider null if it has no active one: then the NPI is deactivated as of today, and
 * nothing else. The row closes the gate for a day; then the registry is asked again, because an NPI
 * may be new or come back
 */
export async function storeRegistryAnswer(
  db: Database,
  npi: string,
  provider: RegistryProvider | null,
): Promise<void> {
  const said: Partial<RegistryProvider> = provider ?? {};
  const { practice, endpoints = [], otherNames = [], locations = [], ...facts } = said;
  const deactivatedOn = provider ? null : sql`current_date`;
  // An import compares hashes to skip what has not changed; what the registry said must never look
  // unchanged to it.
  const marks = { npi, deactivatedOn, origin: 'registry', rowHash: 0 } as const;
  const details = [
    [providerEndpoints, endpoints],
    [providerOtherNames, otherNames],
    [providerLocations, locations.map(locationRow)],
  ] as const;
  await transaction(db, async (tx) => {
    await tx.delete(providers).where(sql`npi = ${npi} and origin = 'registry'`);
    const written = await tx
      .insert(providers)
      .values({ ...facts, ...(practice && practiceOf(practice)), ...marks })
      .onConflictDoNothing()
      .returning({ npi: providers.npi });
    if (written.length === 0) return;
    for (const [table, rows] of details) {
      // Whatever is not said anew is not known any more. Of what the registry names twice the first
      // counts.
      await tx.delete(table).where(sql`npi = ${npi}`);
      if (rows.length > 0)
        await tx.execute(
          sql`${insertAll(table, rows, { npi, importNumber: null })} on conflict do nothing`,
        );
    }
  });
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
  return {
    ...place,
    postalCode: of('postalCode'),
    phone: location.phone,
    ...providerKeys(location),
  };
}
