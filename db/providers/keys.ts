/** What providers of one practice share. */
export interface ProviderKeys {
  /** The last ten digits; null if there are fewer, or only one digit over and over. */
  readonly phoneKey: string | null;
  /** Street and number in one spelling, `|`, five digits of ZIP code; null if either is missing. */
  readonly addressKey: string | null;
}

/**
 * The keys by which a person is found to work at an organization's place, however each wrote it down.
 * @param at the practice location as NPPES has it, in its file or in the NPI Registry
 */
export function providerKeys(at: {
  readonly phone: string | null;
  readonly line1: string | null;
  readonly postalCode: string | null;
}): ProviderKeys {
  return { phoneKey: phoneKey(at.phone ?? ''), addressKey: addressKey(at.line1 ?? '', at.postalCode ?? '') };
}

/** USPS Publication 28, appendices B and C: what is written out and what is meant by it. */
const ABBREVIATIONS = new Map(
  `ALLEY ALY,AVENUE AVE,AV AVE,BOULEVARD BLVD,BRIDGE BRG,CENTER CTR,CENTRE CTR,CIRCLE CIR,COURT CT,CROSSING XING,
  DRIVE DR,EXPRESSWAY EXPY,FREEWAY FWY,HEIGHTS HTS,HIGHWAY HWY,JUNCTION JCT,LANE LN,MOUNT MT,PARKWAY PKWY,PLACE PL,
  PLAZA PLZ,POINT PT,ROAD RD,ROUTE RTE,SQUARE SQ,STREET ST,TERRACE TER,TRAIL TRL,TURNPIKE TPKE,VALLEY VLY,
  APARTMENT APT,BUILDING BLDG,DEPARTMENT DEPT,FLOOR FL,ROOM RM,SUITE STE,UNIT STE,NUMBER STE,NO STE,
  NORTH N,SOUTH S,EAST E,WEST W,NORTHEAST NE,NORTHWEST NW,SOUTHEAST SE,SOUTHWEST SW,
  FIRST 1ST,SECOND 2ND,THIRD 3RD,FOURTH 4TH,FIFTH 5TH,SIXTH 6TH,SEVENTH 7TH,EIGHTH 8TH,NINTH 9TH,TENTH 10TH`
    .split(/,\s*/)
    .map((pair): [string, string] => {
      const [written = '', meant = ''] = pair.split(' ');
      return [written, meant];
    }),
);

function phoneKey(phone: string): string | null {
  const digits = /^[0-9]{10}$/.test(phone) ? phone : phone.replace(/[^0-9]/g, '').slice(-10);
  return digits.length < 10 || /^([0-9])\1*$/.test(digits) ? null : digits;
}

function addressKey(line1: string, postalCode: string): string | null {
  const zip = postalCode.slice(0, 5);
  if (line1 === '' || !/^[0-9]{5}$/.test(zip)) return null;
  const words = line1
    .toUpperCase()
    .replace(/[.']/g, '')
    .replaceAll('#', ' STE ')
    .split(/[^\p{L}\p{N}]+/u)
    .filter((word) => word !== '')
    .map((word) => ABBREVIATIONS.get(word) ?? word)
    // `STE # 5`
    .filter((word, index, all) => word !== 'STE' || all[index + 1] !== 'STE');
  return words.length === 0 ? null : `${words.join(' ')}|${zip}`;
}
