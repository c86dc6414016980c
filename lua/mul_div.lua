-- amount × part ÷ whole, rounded down, and the remainder. `part` must be at most `whole`, `whole` below 2^45
-- and `amount` below 2^49: a product of 2^53 or more is computed by long multiplication in steps of seven
-- bits, which keeps every number below 2^53.
local function mul_div(amount, part, whole)
    local product = amount * part
    if product < 2 ^ 53 then
        local rest = product % whole
        return (product - rest) / whole, rest
    end
    local quotient, rest = 0, 0
    local unit = 2 ^ 42
    while unit >= 1 do
        local digit = (amount - amount % unit) / unit
        amount = amount - digit * unit
        local sum = rest * 128 + part * digit
        rest = sum % whole
        quotient = quotient * 128 + (sum - rest) / whole
        unit = unit / 128
    end
    return quotient, rest
end

-- As `mul_div`, rounded up and without the remainder.
local function mul_div_ceil(amount, part, whole)
    local quotient, rest = mul_div(amount, part, whole)
    if rest > 0 then
        quotient = quotient + 1
    end
    return quotient
end
