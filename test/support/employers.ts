import {
  personOf,
  SAMPLE_NPIS,
  SAMPLE_ORGANIZATIONS,
  type SimPerson,
} from '../../deploy/local/sim/people.ts';
import type { Endpoint, Place } from './providers.ts';

// 500 clinicians of the simulated world with a known employer each, and their records in public
// files. The records are as scattered, old, and wrong as real ones. The shares are careful
// estimates. Draws depend only on a number, so that every run is the same.

/** A row of NPPES with its dependent rows. */
export interface Written {
  readonly npi: string;
  readonly name: string;
  readonly otherName: string | null;
  readonly parentName: string | null;
  readonly place: Place | null;
  readonly endpoints: readonly Endpoint[];
}

/** A row of "Doctors and Clinicians". */
export interface Billed {
  readonly npi: string;
  readonly group: { readonly pacId: string; readonly name: string } | null;
  readonly place: Place;
}

export interface Clinician {
  readonly person: SimPerson;
  /** The kind of records about this clinician. */
  readonly kind: keyof typeof KINDS;
  readonly place: Place | null;
  readonly location: Place | null;
  readonly endpoints: readonly Endpoint[];
}

type Organization = SimPerson['organization'];

/** Number of clinicians of each kind, out of 20. */
const KINDS = {
  'at the practice': 4,
  'in its suite': 2,
  'in its building': 1,
  moved: 2,
  'another location': 1,
  'own mailbox': 1,
  'Direct address': 2,
  'record system': 1,
  'biller, listed': 0.5,
  'biller, unlisted': 0.5,
  'host of a URL': 1,
  'behind a switchboard': 2,
  'nothing on record': 2,
} as const;

const ORDER = Object.entries(KINDS).flatMap(([kind, share]) =>
  Array.from({ length: share * 2 }, () => kind as keyof typeof KINDS),
);
const SWITCHBOARD = {
  phone: '2125559999',
  line1: '1 HOSPITAL PLZ',
  line2: null,
  postalCode: '99502',
};
const PARENT = 'VAST HEALTH SYSTEM, INC.';
const VAST = 'vasthealth-sim.org';
const FREE_PHONE = 2_125_550_000;

/** Returns a number below 100 that is independent of the kind. */
function draw(index: number): number {
  return (index * 7_919 + 13) % 100;
}

export const CLINICIANS: readonly Clinician[] = SAMPLE_NPIS.map((npi, index) => {
  const person = personOf(npi);
  const kind = ORDER[index % ORDER.length] ?? 'nothing on record';
  return { person, kind, ...recordOf(person, kind, index) };
});

function recordOf(
  person: SimPerson,
  kind: keyof typeof KINDS,
  index: number,
): Pick<Clinician, 'place' | 'location' | 'endpoints'> {
  const { organization, workEmail } = person;
  const here = placeOf(organization);
  // Its own telephone number, and a street without any other provider.
  const phone = String(FREE_PHONE + index);
  const home = { phone, line1: `${index} QUIET LN`, line2: null, postalCode: '99501' };
  const nothing = { place: { ...here, phone }, location: null, endpoints: [] };
  switch (kind) {
    case 'at the practice':
      return { ...nothing, place: here };
    case 'in its suite':
      return nothing;
    case 'in its building':
      return { ...nothing, place: { ...here, phone, line2: null } };
    case 'moved':
      return { ...nothing, place: placeOf(nextTo(organization, 7)) };
    case 'another location':
      return { ...nothing, place: home, location: here };
    case 'own mailbox':
      return { ...nothing, place: home, endpoints: [{ endpoint: workEmail }] };
    case 'Direct address': {
      const endpoint = workEmail.replace('@', '@direct.');
      const affiliationName = index % 4 < 2 ? organization.name : null;
      return {
        ...nothing,
        place: home,
        endpoints: [{ kind: 'DIRECT', endpoint, affiliationName }],
      };
    }
    case 'record system':
      return {
        ...nothing,
        place: here,
        endpoints: [
          { kind: 'DIRECT', endpoint: `${person.last}@1234.direct.athenahealth.com` },
        ],
      };
    case 'biller, listed':
      return {
        ...nothing,
        place: here,
        endpoints: [{ endpoint: 'enrollment@collaboratemd.com' }],
      };
    case 'biller, unlisted':
      return {
        ...nothing,
        place: here,
        endpoints: [{ endpoint: 'enrollment@paperwork-sim.com' }],
      };
    case 'host of a URL':
      return {
        ...nothing,
        place: home,
        endpoints: [{ kind: 'FHIR', endpoint: `https://fhir.${organization.domain}/r4` }],
      };
    case 'behind a switchboard':
      return { ...nothing, place: SWITCHBOARD };
    case 'nothing on record':
      return { ...nothing, place: home };
    default:
      return kind satisfies never;
  }
}

/**
 * The organizations in NPPES. Every sixth one has no NPI. Some have several NPIs, or too little
 * data to be useful.
 */
export const ORGANIZATIONS: readonly Written[] = [
  ...SAMPLE_ORGANIZATIONS.flatMap((one, index) => {
    if (index % 6 === 5) return [];
    return [
      {
        npi: one.npi,
        name: one.name,
        otherName: one.dba,
        parentName: null,
        place: placeOf(one),
        endpoints: endpointsOf(one, index),
      },
    ];
  }),
  // Departments of a hospital that share its switchboard and street.
  ...Array.from({ length: 30 }, (_, index) => ({
    npi: String(2_800_000_000 + index),
    name: `DEPARTMENT ${String.fromCharCode(65 + (index % 26))}${index} OF THE HOSPITAL`,
    otherName: null,
    parentName: PARENT,
    place: SWITCHBOARD,
    endpoints: [{ endpoint: `records@${VAST}` }],
  })),
];

function endpointsOf({ domain }: Organization, index: number): Endpoint[] {
  switch (index % 5) {
    case 0:
      return [{ endpoint: `records@${domain}` }];
    case 1:
      return [
        { kind: 'FHIR', endpoint: 'https://fhir4.eclinicalworks.com/fhir/r4/ABCDEF' },
      ];
    case 2:
      return [{ kind: 'FHIR', endpoint: `https://ehr.${domain}/fhir` }];
    default:
      return [];
  }
}

/**
 * Five in a hundred rows name a former group. One in ten clinicians bills for two groups, three in
 * ten for no group.
 */
export const BILLED: readonly Billed[] = CLINICIANS.flatMap(
  ({ person: { npi, organization } }, index) => {
    const drawn = draw(index);
    if (drawn >= 70) return [];
    const group = drawn < 5 ? nextTo(organization, 11) : organization;
    return [
      billedFor(npi, group),
      ...(drawn >= 60 ? [billedFor(npi, nextTo(organization, 3))] : []),
    ];
  },
);

/** The domains that the operator knows: those of two in five organizations, one of them wrong. */
export const KNOWN: readonly (readonly [
  organization: string,
  domain: string,
  pacId: string,
])[] = SAMPLE_ORGANIZATIONS.flatMap((one, index) => {
  if (index % 5 > 1) return [];
  const domain = index === 30 ? 'paperwork-sim.com' : one.domain;
  return [
    [
      index % 2 === 0 ? one.name : '',
      domain,
      index % 2 === 0 ? '' : pacIdOf(one),
    ] as const,
  ];
});

function billedFor(npi: string, organization: Organization): Billed {
  const group = { pacId: pacIdOf(organization), name: organization.name };
  return { npi, group, place: placeOf(organization) };
}

function pacIdOf(organization: Organization): string {
  return String(42_000_000 + SAMPLE_ORGANIZATIONS.indexOf(organization));
}

/**
 * Returns the place of an organization. Every third practice is one of five tenants of a building,
 * each with its own suite.
 */
function placeOf(organization: Organization): Place {
  const index = SAMPLE_ORGANIZATIONS.indexOf(organization);
  const { address, phone } = organization;
  if (index % 3 !== 0)
    return { phone, line1: address.line1, line2: address.line2, postalCode: address.zip };
  const building = Math.floor(index / 15);
  return {
    phone,
    line1: `${building + 1} MEDICAL PLAZA`,
    line2: `SUITE ${100 + index}`,
    postalCode: '99503',
  };
}

function nextTo(organization: Organization, by: number): Organization {
  const index = SAMPLE_ORGANIZATIONS.indexOf(organization) + by;
  return SAMPLE_ORGANIZATIONS[index % SAMPLE_ORGANIZATIONS.length] ?? organization;
}

const COLUMNS =
  'NPI,Ind_PAC_ID,Ind_enrl_ID,Provider Last Name,Provider First Name,Provider Middle Name,suff,gndr,Cred,Med_sch,Grd_yr,pri_spec,sec_spec_1,sec_spec_2,sec_spec_3,sec_spec_4,sec_spec_all,Telehlth,Facility Name,org_pac_id,num_org_mem,adr_ln_1,adr_ln_2,ln_2_sprs,City/Town,State,ZIP Code,Telephone Number,ind_assgn,grp_assgn,adrs_id'.split(
    ',',
  );

/** The cells of a line of the national file, by column. */
export type ClinicianValues = Readonly<Record<string, string>>;

/** Returns the cells of a clinician, for one group at one address. */
export function clinicianRow(npi: string, values: ClinicianValues = {}): ClinicianValues {
  return {
    NPI: npi,
    Ind_PAC_ID: '9830437451',
    'Provider Last Name': 'THORNBURY',
    'Facility Name': 'CEDAR VALLEY CLINIC, LLC',
    org_pac_id: '0042000001',
    num_org_mem: '17',
    adr_ln_1: '12 N MAIN ST',
    adr_ln_2: 'SUITE 200',
    'City/Town': 'CEDAR VALLEY',
    State: 'CO',
    'ZIP Code': '802011234',
    'Telephone Number': '3035550101',
    ...values,
  };
}

/** Formats a line of the national file like CMS. */
export function clinicianLine(values: ClinicianValues): string {
  return `${COLUMNS.map((column) => (/[",]/.test(values[column] ?? '') ? `"${values[column]}"` : (values[column] ?? ''))).join(',')}\n`;
}

export const CLINICIAN_HEADER = clinicianLine(
  Object.fromEntries(COLUMNS.map((column) => [column, column])),
);

/** Returns the national file. */
export function clinicianCsv(): string {
  const lines = BILLED.map(({ npi, group, place }) =>
    clinicianLine({
      NPI: npi,
      'Facility Name': group?.name ?? '',
      org_pac_id: group?.pacId ?? '',
      num_org_mem: group === null ? '' : '12',
      adr_ln_1: place.line1 ?? '',
      adr_ln_2: place.line2 ?? '',
      'ZIP Code': place.postalCode ?? '',
      'Telephone Number': place.phone ?? '',
    }),
  );
  return CLINICIAN_HEADER + lines.join('');
}

/** Returns the operator's table. */
export function domainCsv(): string {
  const lines = KNOWN.map(
    ([organization, domain, pacId]) => `"${organization}",${domain},${pacId}\n`,
  );
  return `organization,domain,pac_id\n${lines.join('')}`;
}
