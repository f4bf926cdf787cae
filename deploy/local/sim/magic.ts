import type { VendorId } from '../../../activities/vendors/catalogue.ts';

// What the magic NPIs show: data alone. Who they are follows in people.ts, what a vendor makes of it in knowledge.ts.

/**
 * What is special about an answer. Everything but `found` can be asked for on purpose: a contact with the last
 * name Simulator and a first name from this list, at any company, is treated that way by the vendors that
 * document such an answer, and simply found by the others.
 */
export const SITUATIONS = [
  'found',
  'nobody',
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
export type Known = Situation | 'both' | 'personal' | 'direct' | 'somebody_else';

/** The magic NPI of an organization, the last practice of the sample. */
export const MAGIC_ORGANIZATION_NPI = '2000000093';

/** Who a magic NPI is and where they work, what each vendor knows (those not named: nobody), and what that shows. */
type Row = readonly [
  npi: string,
  name: string,
  practice: string,
  knows: Partial<Record<VendorId, Known>>,
  shows: string,
];
const ROWS: readonly Row[] = [
  ['2000000010', 'Rowan Ashdown', 'cedarvalleyclinic', { rocketreach: 'found' }, 'professional, at once'],
  ['2000000028', 'Delphine Marlowe', 'northgatecardiology', { rocketreach: 'personal' }, 'personal only'],
  ['2000000036', 'Imani Bellweather', 'cedarvalleyclinic', { rocketreach: 'both' }, 'both types'],
  ['2000000044', 'Casimir Thorne', 'riverbendhealth', {}, 'nobody'],
  ['2000000051', 'Avery Lindqvist', 'harborfamilymedicine', { rocketreach: 'found' }, 'stored, fresh'],
  ['2000000069', 'Noor Castellano', 'lakesidepediatrics', { rocketreach: 'found' }, 'stored, stale, good'],
  ['2000000077', 'Tomas Ferreira', 'summitorthopedics', { rocketreach: 'found' }, 'stored, dead; a new one'],
  ['2000000085', 'Hester Vanterpool', 'mesaviewdermatology', {}, 'deactivated'],
  [MAGIC_ORGANIZATION_NPI, 'Willow Bend', 'willowbendmedical', {}, 'an organization'],
  ['2000000101', 'Bertrand Osei', 'oldtownprimarycare', { rocketreach: 'hanging' }, 'never answered'],
  [
    '2000000119',
    'Salome Winterbourne',
    'harborfamilymedicine',
    { rocketreach: 'failing', fullenrich: 'found' },
    'the first vendor fails, the second finds',
  ],
  ['2000000127', 'Leona Marchetti', 'cedarvalleyclinic', { rocketreach: 'limited' }, 'limited, then found'],
  ['2000000135', 'Piotr Vasquez', 'cedarvalleyclinic', { rocketreach: 'catchall' }, 'catch-all only'],
  ['2000000143', 'Greta Oyelaran', 'cedarvalleyclinic', { rocketreach: 'unknown' }, 'greylisted, then valid'],
  ['2000000150', 'Sunil Harrow', 'cedarvalleyclinic', { rocketreach: 'direct' }, 'a Direct address only'],
  ['2000000168', 'Wren Halloway', 'lakesidepediatrics', { rocketreach: 'somebody_else' }, 'somebody else'],
  ['2000000176', 'Ottoline Prescott', 'riverbendhealth', { hunter: 'optedout' }, 'not to be processed'],
  ['2000000184', 'Marcus Delacroix', 'cedarvalleyclinic', { rocketreach: 'found' }, 'suppressed'],
  ['2000000192', 'Philippa Stonehouse', 'northgatecardiology', { fullenrich: 'found' }, 'FullEnrich alone'],
  ['2000000200', 'Anatole Birkenfeld', 'summitorthopedics', { prospeo: 'found' }, 'Prospeo alone'],
  ['2000000218', 'Marisol Kettleburn', 'mesaviewdermatology', { hunter: 'found' }, 'Hunter alone'],
  [
    '2000000226',
    'Cordelia Ashworth',
    'oldtownprimarycare',
    { fullenrich: 'somebody_else', hunter: 'found' },
    'FullEnrich names somebody else, Hunter is right',
  ],
];

export const MAGIC = new Map(
  ROWS.map(([npi, name, practice, knows, shows]) => [npi, { name, practice, knows, shows }]),
);
/** In the sample of NPPES, and deactivated there. */
export const DEACTIVATED_NPIS: readonly string[] = ['2000000085'];
/** Who must not be looked up: the local stack suppresses them before it starts. */
export const SUPPRESSED_NPIS: readonly string[] = ['2000000184'];

/** What the local stack puts into its directory before it starts; when each was validated in milliseconds before now. */
export const STORED_EMAILS = [
  { npi: '2000000051', email: 'avery.lindqvist@harborfamilymedicine-sim.com', validatedAgoMs: 0 },
  { npi: '2000000069', email: 'noor.castellano@lakesidepediatrics-sim.com', validatedAgoMs: 40 * 86_400_000 },
  { npi: '2000000077', email: 'tomas.ferreira@closedpractice-sim.com', validatedAgoMs: 40 * 86_400_000 },
].map((stored) => ({ ...stored, type: 'professional' as const }));
