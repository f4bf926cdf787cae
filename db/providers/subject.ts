import { eq, type SQL, sql } from 'drizzle-orm';
import { type Database, query, type Transaction } from '../client.ts';
import { providers } from '../schema.ts';
import type { EndpointKind } from '../words.ts';

// Who an NPI is, and who else is where it is: what NPPES or the NPI registry say, unjudged.

export interface EndpointFact {
  readonly kind: EndpointKind;
  /** As the file has it: an address, a URL, or neither. */
  readonly endpoint: string;
  readonly affiliationName: string | null;
}

/** An active organization (type 2) that shares a telephone or an address with a provider. */
export interface Neighbor {
  readonly npi: string;
  /** The legal business name. */
  readonly name: string | null;
  /** The names it does business under. */
  readonly otherNames: readonly string[];
  /** Those with an `@` in them. */
  readonly endpoints: readonly EndpointFact[];
}

/** Null if so many share it that being there says nothing: an answering service, a hospital's switchboard. */
export type Neighbors = readonly Neighbor[] | null;

/** A provider as the tables have it. Text is as NPPES writes it, capitals and stray characters included. */
export interface ProviderFacts extends Readonly<typeof providers.$inferSelect> {
  /** Why nobody is asked about it; null if it is an active individual for all that is known. */
  readonly refusal: Exclude<GateReason, 'suppressed'> | null;
  /** States of the practice locations beside the primary one. */
  readonly otherStates: readonly string[];
  readonly endpoints: readonly EndpointFact[];
  readonly atPhone: Neighbors;
  readonly atAddress: Neighbors;
}

/** Why nobody is asked about an NPI. */
export type GateReason = 'organization_npi' | 'deactivated' | 'suppressed';

/** More organizations than this at one telephone or address are a crowd. */
const NEIGHBORS_AT_MOST = 20;
/** So many other locations, of persons too, are looked at for one telephone or address. */
const LOCATIONS_AT_MOST = 200;
const ENDPOINTS_AT_MOST = 50;

/** What the registry did not know, or knew as out of service, counts for a day (see `storeRegistryAbsence`). */
const REFUSAL = sql<ProviderFacts['refusal']>`case
  when not is_inactive(providers.npi) then null
  when not providers.active then 'deactivated'
  else 'organization_npi' end`;

/**
 * The NPIs of a batch that are not to be looked up, and why, in one statement. An NPI that no table has passes.
 * @param npis 10 digits each
 */
export async function gate(db: Database, npis: readonly string[]): Promise<Map<string, GateReason>> {
  const rows = await query(db, (tx) =>
    tx.execute<{ npi: string; reason: GateReason }>(sql`
      select asked.npi, reason
        from unnest(${sql.param([...new Set(npis)])}::text[]) asked(npi)
        left join providers on providers.npi = asked.npi
        cross join lateral (
          select case when is_suppressed(asked.npi, null) then 'suppressed' else ${REFUSAL} end as reason
        ) judged
       where reason is not null`),
  );
  return new Map(rows.map(({ npi, reason }) => [npi, reason]));
}

/**
 * Everything on record that tells who a provider is and where they work. A few indexed reads, bounded however many
 * share a telephone or an address.
 * @returns null if neither NPPES nor the registry has the NPI
 */
export async function readProvider(db: Database, npi: string): Promise<ProviderFacts | null> {
  return await query(db, async (tx) => {
    const [row] = await tx
      .select({
        provider: providers,
        refusal: REFUSAL,
        otherStates: sql<string[]>`array(
          select distinct l.state from provider_locations l where l.npi = ${npi} order by 1 limit ${LOCATIONS_AT_MOST})`,
        // All kinds of the provider's own, whose affiliations tell the employer.
        endpoints: endpointsOf(sql`${npi}`, sql`true`),
      })
      .from(providers)
      .where(eq(providers.npi, npi));
    if (!row) return null;
    const { provider, ...facts } = row;
    return { ...provider, ...facts, ...(await readNeighbors(tx, provider)) };
  });
}

/** The organizations, in the order of their NPIs, at the telephone and at the address; null for a crowd. */
async function readNeighbors(
  tx: Pick<Transaction, 'execute'>,
  { phoneKey, addressKey }: typeof providers.$inferSelect,
): Promise<Pick<ProviderFacts, 'atPhone' | 'atAddress'>> {
  const at = (key: 'phone_key' | 'address_key', value: string | null) => sql`
    (select npi from providers
      where entity_type = 2 and active and ${sql.identifier(key)} = ${value}::text
      limit ${NEIGHBORS_AT_MOST + 1})
    union
    (select p.npi
       from (select l.npi from provider_locations l
              where l.${sql.identifier(key)} = ${value}::text limit ${LOCATIONS_AT_MOST}) l
       join providers p on p.npi = l.npi
      where p.entity_type = 2 and p.active
      limit ${NEIGHBORS_AT_MOST + 1})`;
  // Other name type 3 is "Doing Business As"; the rest are names of the past, and others' words.
  const rows = await tx.execute<Neighbor & { readonly place: string } & Record<string, unknown>>(sql`
    select near.place, p.npi, p.organization_name as name,
           array(select n.name from provider_other_names n
                  where n.npi = p.npi and n.type_code = '3' order by n.name limit ${NEIGHBORS_AT_MOST}) as "otherNames",
           ${endpointsOf(sql`p.npi`, sql`endpoint like '%@%'`)} as endpoints
      from (select 'phone' as place, npi from (${at('phone_key', phoneKey)}) a
            union all
            select 'address', npi from (${at('address_key', addressKey)}) a) near
     cross join lateral (select npi, organization_name from providers where npi = near.npi) p
     order by p.npi`);
  const found = (place: 'phone' | 'address') => {
    const here = rows.filter((row) => row.place === place).map(({ place: _place, ...neighbor }) => neighbor);
    return here.length > NEIGHBORS_AT_MOST ? null : here;
  };
  return { atPhone: found('phone'), atAddress: found('address') };
}

/** Those endpoints of an NPI for which `holds` does, as a list of `EndpointFact`. */
function endpointsOf(npi: SQL, holds: SQL) {
  return sql<EndpointFact[]>`(
    select coalesce(jsonb_agg(jsonb_build_object(
             'kind', kind, 'endpoint', endpoint, 'affiliationName', affiliation_name)), '[]')
      from (select kind, endpoint, affiliation_name from provider_endpoints
             where npi = ${npi} and ${holds} order by kind, endpoint limit ${ENDPOINTS_AT_MOST}) e)`;
}
