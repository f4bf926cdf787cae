import { hasNpiCheckDigit } from '../../../activities/person/npi.ts';

// Practices that do not exist, at domains nobody has registered, with telephone numbers set aside for fiction
// (555-01XX). Their NPIs lie in the row beginning with 2, which is not being assigned.

/** A practice as NPPES has it. */
export interface SimOrganization {
  /** Type 2. */
  readonly npi: string;
  /** The legal business name, upper case as NPPES has it. */
  readonly name: string;
  /** The name on its door, upper case; null where that is the legal one. */
  readonly dba: string | null;
  readonly domain: string;
  readonly address: {
    readonly line1: string;
    readonly line2: string | null;
    readonly city: string;
    readonly state: string;
    /** Five digits. */
    readonly zip: string;
  };
  /** Ten digits. */
  readonly phone: string;
}

/** The magic NPI of an organization. */
export const MAGIC_ORGANIZATION_NPI = '2000000093';

const FIRST_STEM = 250_000_000;
const LEGAL_FORMS = ['PLLC', 'LLC', 'PC', 'INC', 'LLP'];

/** Sixty. The first eight have had their places in this list since the first version of the simulator. */
const PRACTICES = `cedarvalleyclinic-sim.com Cedar Valley Clinic
harborfamilymedicine-sim.com Harbor Family Medicine
northgatecardiology-sim.com Northgate Cardiology
lakesidepediatrics-sim.com Lakeside Pediatrics
summitorthopedics-sim.com Summit Orthopedics
riverbendhealth-sim.org Riverbend Health
mesaviewdermatology-sim.com Mesa View Dermatology
oldtownprimarycare-sim.net Oldtown Primary Care
alderbrookinternists-sim.com Alder Brook Internists
amberfieldwomens-sim.com Amberfield Women's Health
ashgrovemedical-sim.com Ash Grove Medical Group
bayhavenurology-sim.com Bayhaven Urology
birchhollowfamily-sim.com Birch Hollow Family Practice
blueheronhospital-sim.org Blue Heron Community Hospital
brightwaterallergy-sim.com Brightwater Allergy & Asthma
canyonridgepain-sim.com Canyon Ridge Pain Center
cloverleafpediatrics-sim.com Cloverleaf Pediatrics
copperhillsurgery-sim.com Copper Hill Surgery Center
cottonwoodneurology-sim.com Cottonwood Neurology
crescentlakehealth-sim.org Crescent Lake Health
dovecreekclinic-sim.com Dove Creek Clinic
eaglepassortho-sim.com Eagle Pass Orthopaedics
eastmarshgastro-sim.com East Marsh Gastroenterology
elmwoodeyecare-sim.com Elmwood Eye Care
fairhavenobgyn-sim.com Fairhaven OB/GYN
fernwoodbehavioral-sim.com Fernwood Behavioral Health
foxglovedental-sim.com Foxglove Dental
glassriveroncology-sim.org Glass River Oncology
goldenplainsrural-sim.org Golden Plains Rural Health
granitebaymed-sim.com Granite Bay Medical Associates
greenmeadowvein-sim.com Green Meadow Vein Institute
hawthornpulmonary-sim.com Hawthorn Pulmonary
hazelcrestent-sim.com Hazelcrest ENT
heatherfieldrehab-sim.com Heatherfield Rehabilitation
hollowoaknephrology-sim.com Hollow Oak Nephrology
ironwoodurgent-sim.com Ironwood Urgent Care
junipertrailclinic-sim.net Juniper Trail Clinic
kestrelheart-sim.com Kestrel Heart Center
larkspurfertility-sim.com Larkspur Fertility
laurelmountain-sim.org Laurel Mountain Health System
lindenparkmed-sim.com Linden Park Medical
longmeadowgeriatrics-sim.com Longmeadow Geriatrics
maplestreetmed-sim.net Maple Street Medicine
marigoldpodiatry-sim.com Marigold Podiatry
millpondfamily-sim.com Mill Pond Family Physicians
moonstoneimaging-sim.com Moonstone Imaging
northstarhospitalists-sim.com North Star Hospitalists
orchardviewkids-sim.com Orchard View Kids
osprey-sim.org Osprey Point Medical Center
palisadeplastic-sim.com Palisade Plastic Surgery
pinebluffanesthesia-sim.com Pine Bluff Anesthesia
prairiewindhealth-sim.org Prairie Wind Health
quartzcreekpt-sim.com Quartz Creek Physical Therapy
redrockendocrine-sim.com Red Rock Endocrinology
sagebrushpsychiatry-sim.com Sagebrush Psychiatry
silverpinehospice-sim.org Silver Pine Hospice
stonebridgeprimary-sim.com Stonebridge Primary Care
tidewaterhand-sim.com Tidewater Hand Surgery
westwindrheum-sim.com Westwind Rheumatology
willowbendmed-sim.com Willow Bend Medical`.split('\n');

/** State, area code, first three digits of its ZIP codes. */
const PLACES = [
  ['CO', '303', '802'],
  ['TX', '512', '787'],
  ['OH', '614', '432'],
  ['WA', '206', '981'],
  ['NC', '919', '276'],
  ['MN', '612', '554'],
  ['AZ', '602', '850'],
  ['GA', '404', '303'],
  ['OR', '503', '972'],
  ['PA', '215', '191'],
] as const;
const TOWNS = [
  'CEDAR VALLEY',
  'HARBOR GLEN',
  'NORTHGATE',
  'LAKESIDE MILLS',
  'SUMMIT FALLS',
  'RIVERBEND',
  'MESA VIEW',
];
const STREETS = [
  'MAIN ST',
  'SECOND AVE',
  'HOSPITAL DR',
  'OLD MILL RD',
  'PARK BLVD',
  'WALNUT ST',
  'COUNTY RD 9',
];

/** All practices of the sample; no two share a domain, an address or a telephone number. */
export const SAMPLE_ORGANIZATIONS: readonly SimOrganization[] = PRACTICES.map((line, index) => {
  const space = line.indexOf(' ');
  const door = line.slice(space + 1).toUpperCase();
  const [state, area, zip] = PLACES[index % PLACES.length] ?? PLACES[0];
  const twoDigits = String(index).padStart(2, '0');
  return {
    npi: npiOf(index),
    ...namesOf(door, index),
    domain: line.slice(0, space),
    address: {
      line1: `${100 + index * 7} ${pick(STREETS, index)}`,
      line2: index % 4 === 1 ? `STE ${200 + index}` : null,
      city: pick(TOWNS, index),
      state,
      zip: `${zip}${twoDigits}`,
    },
    phone: `${area}55501${twoDigits}`,
  };
});

/** Every third one does business under another name than its legal one. */
function namesOf(door: string, index: number): Pick<SimOrganization, 'name' | 'dba'> {
  const form = pick(LEGAL_FORMS, index);
  if (index % 3 !== 2) return { name: `${door} ${form}`, dba: null };
  return { name: `${pick(TOWNS, index)} PROVIDERS ${index} ${form}`, dba: door };
}

function npiOf(index: number): string {
  return index === PRACTICES.length - 1 ? MAGIC_ORGANIZATION_NPI : withCheckDigit(FIRST_STEM + index);
}

/** @param stem nine digits */
export function withCheckDigit(stem: number): string {
  const digits = Array.from({ length: 10 }, (_, digit) => `${stem}${digit}`);
  const npi = digits.find(hasNpiCheckDigit);
  if (npi === undefined) throw new RangeError(`${stem} is not nine digits`);
  return npi;
}

function pick(list: readonly string[], index: number): string {
  return list[index % list.length] ?? '';
}
