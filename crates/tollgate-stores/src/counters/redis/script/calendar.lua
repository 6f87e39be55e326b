-- The calendar: S seconds, W weeks from Monday, M months, Y years, each followed by a count.
-- Dates by Hinnant's civil_from_days.
function index_at(calendar, t)
  local unit, count = string.sub(calendar, 1, 1), tonumber(string.sub(calendar, 2))
  local seconds = floor(t / 1000000)
  if unit == 'S' then
    return floor(seconds / count)
  end
  local day = floor(seconds / 86400)
  if unit == 'W' then
    return floor(floor((day + 3) / 7) / count)
  end
  local shifted = day + 719468
  local era = floor(shifted / 146097)
  local doe = shifted - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  local from_march = floor((5 * doy + 2) / 153)
  local month = from_march < 10 and from_march + 3 or from_march - 9
  local year = era * 400 + yoe + (month <= 2 and 1 or 0)
  if unit == 'M' then
    return floor(((year - 1970) * 12 + month - 1) / count)
  end
  return floor((year - 1970) / count)
end

function start_of(calendar, index)
  local unit, units = string.sub(calendar, 1, 1), index * tonumber(string.sub(calendar, 2))
  if unit == 'S' then
    return units * 1000000
  elseif unit == 'W' then
    return max(units * 7 - 3, 0) * 86400000000
  end
  local months = unit == 'M' and units or units * 12
  local year, month = 1970 + floor(months / 12), months % 12 + 1
  if month <= 2 then
    year = year - 1
  end
  local era = floor(year / 400)
  local yoe, from_march = year - era * 400, (month + 9) % 12
  local doe = yoe * 365 + floor(yoe / 4) - floor(yoe / 100) + floor((153 * from_march + 2) / 5)
  return (era * 146097 + doe - 719468) * 86400000000
end

