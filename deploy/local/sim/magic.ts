import { digestOf, directAddress, findPerson, personOf, type SimPerson } from './people.ts';

// What the simulated vendors know: of the magic NPIs what this table says, of all others what their digits say.

/** A vendor, in the order of the waterfall; all but RocketReach are asked by name and employer. */
export type VendorId = 'rocketreach' | 'fullenrich' | 'prospeo' | 'hunter';

/**
 * What is special about an answer. Everything but `found` can be asked for on purpose: a contact with the last
 * name Simulator and a first name from this list, at any company, is treated that way by the vendors that
 * document such an answer, and simply found by the others.
 */
export const SITUATIONS = [
  'found',
  'slow', // The vendor takes a while.
  'limited', // The first question meets the vendor's rate limit, the next one is answered.
  'broke', // Our account has no credits left.
  'failing',
  'hanging',
  'optedout', // The person asked the vendor to stop processing.
  'masked', // The address is shown with asterisks, until it is paid for.
  'catchall',
  'unknown', // The vendor could not find out whether the mailbox exists.
  'probable', // The vendor thinks so, without proof.
  'missing', // The mailbox does not exist.
  'webmail',
  'disposable',
  'canceled',
] as const;
export type Situation = (typeof SITUATIONS)[number];
/** What is special to some situations. */
export type BySituation<T> = Readonly<Partial<Record<Situation, T>>>;

/** What one vendor knows of one person: a situation of their work address, or one of these. */
type Known = Situation | 'both' | 'personal' | 'direct' | 'somebody_else';

/** What a magic NPI shows, in a few words for people, and what each vendor knows; those not named know nobody. */
export const MAGIC: ReadonlyMap<string, readonly [about: string, knows: Partial<Record<VendorId, Known>>]> =
  new Map([
    ['2000000010', ['professional, at once', { rocketreach: 'found' }]],
    ['2000000028', ['personal only', { rocketreach: 'personal' }]],
    ['2000000036', ['both types', { rocketreach: 'both' }]],
    ['2000000044', ['nobody', {}]],
    ['2000000051', ['stored, fresh', { rocketreach: 'found' }]],
    ['2000000069', ['stored, stale, still good', { rocketreach: 'found' }]],
    ['2000000077', ['stored, stale, dead; a new one', { rocketreach: 'found' }]],
    ['2000000085', ['deactivated', {}]],
    ['2000000093', ['an organization', {}]],
    ['2000000101', ['the first vendor never answers', { rocketreach: 'hanging' }]],
    [
      '2000000119',
      ['the first vendor fails, the second finds', { rocketreach: 'failing', fullenrich: 'found' }],
    ],
    ['2000000127', ['rate limited, then found', { rocketreach: 'limited' }]],
    ['2000000135', ['catch-all only', { rocketreach: 'catchall' }]],
    ['2000000143', ['not verified by the vendor; greylisted, then valid', { rocketreach: 'unknown' }]],
    ['2000000150', ['a Direct address only', { rocketreach: 'direct' }]],
    ['2000000168', ['somebody else', { rocketreach: 'somebody_else' }]],
    ['2000000176', ['asked the last vendor not to be processed', { hunter: 'optedout' }]],
    ['2000000184', ['suppressed', { rocketreach: 'found' }]],
    ['2000000192', ['found by FullEnrich only', { fullenrich: 'found' }]],
    ['2000000200', ['found by Prospeo only', { prospeo: 'found' }]],
    ['2000000218', ['found by Hunter only', { hunter: 'found' }]],
    [
      '2000000226',
      ['somebody else at FullEnrich, found by Hunter', { fullenrich: 'somebody_else', hunter: 'found' }],
    ],
  ]);

/** What the local stack puts into its directory before it starts; when each was validated in milliseconds before now. */
export const STORED_EMAILS = [
  { npi: '2000000051', email: 'avery.lindqvist@harborfamilymedicine-sim.com', validatedAgoMs: 0 },
  { npi: '2000000069', email: 'noor.castellano@lakesidepediatrics-sim.com', validatedAgoMs: 40 * 86_400_000 },
  { npi: '2000000077', email: 'tomas.ferreira@closedpractice-sim.com', validatedAgoMs: 40 * 86_400_000 },
].map((stored) => ({ ...stored, type: 'professional' as const }));
/** Who must not be looked up: the local stack suppresses them before it starts. */
export const SUPPRESSED_NPIS: readonly string[] = ['2000000184'];
/** In the sample of NPPES, and deactivated there. */
export const DEACTIVATED_NPIS: readonly string[] = ['2000000085'];

/** Whom a vendor takes others for: a stranger who has somebody's NPI. */
export const STRANGER: SimPerson = {
  ...personOf('2000000010'),
  first: 'Edda',
  last: 'Kowalczyk',
  workEmail: 'edda.kowalczyk@cedarvalleyclinic-sim.com',
};

/** What a vendor has of a person, before its own wire format. */
export type Finding = NonNullable<ReturnType<typeof findingOf>>;

/** @returns null if the vendor does not know the person; `person` is whose addresses these are, be it a stranger */
export function findingOf(vendor: VendorId, asked: SimPerson) {
  const magic = MAGIC.get(asked.npi);
  const known = magic ? magic[1][vendor] : ordinarilyKnown(vendor, asked.npi);
  if (known === undefined) return null;
  const person = known === 'somebody_else' ? STRANGER : asked;
  const atWork = known === 'direct' ? directAddress(person) : person.workEmail;
  return {
    person,
    workEmail: known === 'personal' ? null : atWork,
    homeEmail: known === 'personal' || known === 'both' ? person.homeEmail : null,
    situation: SITUATIONS.find((situation) => situation === known) ?? 'found',
  };
}

/** Whom RocketReach does not know, one of the others knows, or nobody; Prospeo and Hunter have no personal addresses. */
function ordinarilyKnown(vendor: VendorId, npi: string): Known | undefined {
  const share = shareOf(npi);
  switch (share) {
    case 'nobody':
      return undefined;
    case 'other_vendor':
      return OTHER_VENDORS[digestOf(npi).readUInt8(11) % OTHER_VENDORS.length] === vendor
        ? 'found'
        : undefined;
    case 'personal':
      return vendor === 'rocketreach' || vendor === 'fullenrich' ? share : undefined;
    default:
      return share;
  }
}

const OTHER_VENDORS: readonly VendorId[] = ['fullenrich', 'prospeo', 'hunter'];

/** What there is to find about providers who are not magic, 20, 40, 15, 5, 5 and 15 in a hundred of them. */
const SHARES = [
  [20, 'both'],
  [60, 'found'],
  [75, 'personal'],
  [80, 'slow'],
  [85, 'other_vendor'],
  [100, 'nobody'],
] as const;

/** Drawn from the digits of an NPI: 60 % have a professional address, a third of them a personal one too. */
export function shareOf(npi: string): (typeof SHARES)[number][1] {
  const percent = digestOf(npi).readUInt16BE(2) % 100;
  return SHARES.find(([below]) => percent < below)?.[1] ?? 'nobody';
}

/** Whom a vendor is asked about. */
export interface Contact {
  readonly first: string;
  readonly last: string;
  readonly domain: string | null;
  readonly company: string | null;
}

/** A contact from the fields that the vendors share; null if a name, or what would name the employer, is missing. */
export function contactOf(
  { first_name, last_name, full_name }: Readonly<Record<string, unknown>>,
  at: { readonly domain: unknown; readonly company: unknown },
): Contact | null {
  const [head, ...tail] = textOf(full_name)?.split(/\s+/) ?? [];
  const first = textOf(first_name) ?? textOf(head);
  const last = textOf(last_name) ?? textOf(tail.join(' '));
  const [domain, company] = [textOf(at.domain), textOf(at.company)];
  return first && last && (domain ?? company) ? { first, last, domain, company } : null;
}

/** Trimmed text; null if it is empty, absent or something else. */
export function textOf(value: unknown): string | null {
  return typeof value === 'string' && value.trim() !== '' ? value.trim() : null;
}

/** What a vendor knows of a contact, and who that is: the NPI, or the name if it is nobody's. */
export function search(vendor: VendorId, contact: Contact): { subject: string; finding: Finding | null } {
  const { first, last } = contact;
  const person = findPerson(contact, contact);
  if (person) return { subject: person.npi, finding: findingOf(vendor, person) };
  const subject = `${first} ${last}`;
  const situation = SITUATIONS.find((one) => one === first.toLowerCase());
  if (last.toLowerCase() !== 'simulator' || situation === undefined) return { subject, finding: null };
  const workEmail = `${situation}.simulator@${STRANGER.organization.domain}`;
  return {
    subject,
    finding: { person: { ...STRANGER, first, last }, workEmail, homeEmail: null, situation },
  };
}
